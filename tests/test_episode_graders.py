"""Episodes whose environments ask an endpoint: names, tokens, records, and failures."""

import math
import pickle
from dataclasses import replace

import pytest

from germline.config import load_config
from germline.endpoint.episode_graders import EndpointGraders, episode_seeds
from germline.endpoint.rows import RUNS, EpisodeLog, LoggedTurn
from germline.episodes import play_episodes
from germline.example import Turn
from germline.fleet.worker_jobs import EpisodesJob
from germline.run.build_parts import make_engine
from germline.types import Completion, Decoding, EngineLost, Example, SeedPerturbation
from tests.endpoint_graders import AsksTwice, Completes
from tests.instant_engine import InstantEngine

MEMBERS = [SeedPerturbation(0, 0, number, 1, 0.1) for number in range(4)]
EXAMPLES = [Example(n, f"Begin {n}.", "", chat=True, facts={"number": n}) for n in range(3)]
GREEDY = Decoding(8)


@pytest.fixture(scope="module")
def nano():
    return make_engine(load_config({"model": "nano", "task": "wordle", "space": "low_rank"}))


def pool(grader):
    parts = {"rubric": {"reward": 1.0}, "floor": {"reward": 0.0}}
    return EndpointGraders(grader=grader, **parts, timeout_s=60.0, max_turns=4)


def play(engine, grader=None, members=MEMBERS, examples=EXAMPLES, decoding=GREEDY, first=0):
    with pool(grader or AsksTwice()) as graders:
        return play_episodes(engine, graders, members, examples, decoding, first)


def test_what_the_model_reads_and_writes_is_recorded_turn_by_turn():
    rows = play(InstantEngine(lambda first, turn: f"{first} {turn}"))
    assert [[one.grade.reward for one in row] for row in rows] == [[10.0] * 3] * 4
    assert {one.turns for row in rows for one in row if one.example == 2} == {
        (
            Turn("assistant", "Begin 2. 0", (0, 0, 0, 0)),
            Turn("user", "On."),
            Turn("assistant", "Begin 2. 1", (0, 0, 0, 0)),
        )
    }


def test_a_model_name_picks_the_weights_of_a_member_of_the_whole_population(nano):
    decoding = replace(GREEDY, noise_generation=5)
    rows = play(nano, decoding=decoding, first=8)
    one = play(nano, AsksTwice(model="gen-5/member-10"), decoding=decoding, first=8)
    own = [turn for turn in rows[2][0].turns if turn.role == "assistant"]
    assert one[2][0].turns == rows[2][0].turns
    assert one[0][0].grade.reward == len(own[-1].content)
    unknown = play(nano, AsksTwice(model="gen-5/member-2"), decoding=decoding, first=8)
    assert math.isnan(unknown[0][0].grade.reward)
    assert "gen-5/member-8 to gen-5/member-11" in unknown[0][0].grade.failure


class Watched:
    """An engine that notes the tokens of its prompts."""

    def __init__(self, engine):
        self._engine = engine
        self.read = set()

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def generate(self, members, examples, decoding):
        self.read |= {example.token_ids for example in examples}
        return self._engine.generate(members, examples, decoding)

    def converse(self, members, prompts, decoding, reply):
        self.read |= {example.token_ids for rows in prompts for example in rows}
        return self._engine.converse(members, prompts, decoding, reply)


def test_a_reply_is_read_again_as_its_tokens_and_not_as_its_text(nano):
    engine = Watched(nano)
    encode = nano.pretrained.tokenizer.encode
    rows = play(engine, decoding=replace(GREEDY, temperature=2.0))
    firsts = [one.turns[0] for row in rows for one in row]
    assert any(encode(turn.content) != list(turn.tokens) for turn in firsts)
    for one in (one for row in rows for one in row):
        example = EXAMPLES[one.example]
        begun = (*nano.encoder.encode(example), *one.turns[0].tokens)
        assert any(read[: len(begun)] == begun for read in engine.read)


def test_texts_that_an_agent_continues_have_the_noise_and_the_limit_of_the_run(nano):
    first, again = (
        [[one.grade.reward for one in row] for row in play(nano, Completes())] for _ in range(2)
    )
    assert first == again
    assert all(reward < GREEDY.max_new_tokens + 1 for row in first for reward in row)


def test_the_endpoint_asks_for_its_token():
    rows = play(InstantEngine(lambda *_: "x"), AsksTwice(token="wrong"), members=[None])
    assert all(math.isnan(one.grade.reward) and "401" in one.grade.failure for one in rows[0])


def test_an_engine_that_is_lost_is_the_error_of_the_evaluation():
    def fail(*_):
        raise EngineLost("the engine is gone")

    with pytest.raises(EngineLost, match="the engine is gone"):
        play(InstantEngine(fail))


def test_seeds_depend_on_generation_and_example_and_on_no_member():
    seeds = episode_seeds([*EXAMPLES, EXAMPLES[0]], GREEDY)
    assert len(set(seeds)) == 4
    assert seeds[:3] == episode_seeds(EXAMPLES, GREEDY)
    assert not {*seeds} & {*episode_seeds(EXAMPLES, replace(GREEDY, noise_generation=1))}
    assert max(seeds) < 2**53


def test_an_engine_in_another_process_plays_episodes_with_its_own_graders():
    with pool(AsksTwice()) as graders:
        job = EpisodesJob(MEMBERS, EXAMPLES, GREEDY, pickle.dumps(graders), first_member=4)
    engine = InstantEngine(lambda first, turn: f"{first} {turn}")
    rows = job(engine)
    assert rows == play(engine, first=4)


SEED = 7 * RUNS


def turn(seed, text):
    asked = Example(0, "?", "", chat=True)
    return LoggedTurn(seed, asked, True, (), Completion(text, (), "eos", 0))


def texts(log, model, seed):
    return [one.completion.text for one in log.turns(model, seed)]


def test_an_episode_has_the_turns_of_all_its_runs_those_of_the_first_run_first():
    log = EpisodeLog(default_seed=0)
    for seed, text in ((SEED + 1, "c"), (SEED, "a"), (SEED + RUNS, "other episode"), (SEED, "b")):
        log.note("center", turn(seed, text), Example(0, f"{text}?", "", chat=True), text)
    log.note(
        "gen-0/member-1", turn(SEED, "other member"), Example(0, "?", "", chat=True), "other member"
    )
    assert texts(log, "center", SEED) == ["a", "b", "c"]
    assert texts(log, "center", SEED + RUNS) == ["other episode"]
    assert texts(log, "gen-0/member-1", SEED) == ["other member"]
    assert texts(log, "gen-0/member-2", SEED) == []


def test_only_the_same_run_of_the_same_member_continues_a_conversation():
    log = EpisodeLog(default_seed=0)
    asked, said = Example(0, "hello", "", chat=True), turn(SEED, "hi")
    log.note("center", said, asked, "hi")
    context = (("user", "hello"), ("assistant", "hi"), ("user", "one"))
    more = Example(0, "two", "", chat=True, context=context)
    new, after = log.continued("center", SEED, more)
    assert (new.context, new.prompt, after) == (context[:2], "one\ntwo", said)
    for model, seed in (("center", SEED + 1), ("gen-0/member-0", SEED)):
        assert log.continued(model, seed, more) == (more, None)
