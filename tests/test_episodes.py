"""Episodes: who writes what, when they end, what is recorded, and what sigma is calibrated on."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from germline.config import MicrobatchSettings
from germline.episodes import environment_seed, model_turns, play_episodes
from germline.evaluation.kl_divergence import MemberKl
from germline.example import Transcript, Turn, joined
from germline.fleet.local_fleet import LocalFleet
from germline.graders.pool import GraderPool
from germline.rollout import evaluate_members
from germline.types import Completion, Decoding, Example, Grade, Rollout
from tests.python_rewards import fails_midway
from tests.tiny_engines import SPACES, engine, inprocess, population
from tests.toy_runs import InProcessPool

DECODING = Decoding(max_new_tokens=5)
SEEDS: list[tuple[int, int]] = []


def countdown_game(transcript: Transcript, example: Example) -> Mapping[str, float] | str:
    """End after as many turns as the example says; the reward is the number of turns."""
    SEEDS.append((example.index, transcript.seed))
    turns = len(transcript.replies)
    if not example.facts["turns"]:
        return {"turns": -1.0}
    if not turns:
        return str(example.facts.get("opening", ""))
    if turns == example.facts["turns"] or transcript.is_final:
        return {"turns": float(turns)}
    return f" left: {int(str(example.facts['turns'])) - turns}"


def game(*turns: int, **facts: object) -> list[Example]:
    return [
        Example(7 + number, f"game {number}", "", chat=False, facts={"turns": count, **facts})
        for number, count in enumerate(turns)
    ]


def pool(max_turns: int) -> InProcessPool:
    return InProcessPool(countdown_game, {"turns": 1.0}, {"turns": -1.0}, max_turns=max_turns)


def play(made, members, batch, max_turns=4):
    with pool(max_turns) as graders:
        return play_episodes(made, graders, members, batch, DECODING)


@pytest.fixture(scope="module")
def made():
    return inprocess("qwen2", SPACES["rank 1"])


def test_every_turn_is_recorded_with_its_author_and_tokens(made):
    members = (*population(2).members, None)
    rows = play(made, members, game(3, 1))
    for number, row in enumerate(rows):
        three, one = row
        assert (three.member, three.example, one.example) == (number, 7, 8)
        assert [turn.role for turn in three.turns] == ["assistant", "user"] * 2 + ["assistant"]
        assert [turn.content for turn in three.turns][1::2] == [" left: 2", " left: 1"]
        assert [bool(turn.tokens) for turn in three.turns] == [True, False, True, False, True]
        written = [turn for turn in three.turns if turn.role == "assistant"]
        assert three.completion.text == "\n".join(turn.content for turn in written)
        assert three.completion.tokens == tuple(t for turn in written for t in turn.tokens)
        assert (three.grade.reward, three.ended, one.grade.reward) == (3.0, "done", 1.0)


def test_an_episode_has_read_each_token_of_its_conversation_once(made):
    batch = game(3, 1)
    with pool(4) as graders:
        fleet = LocalFleet(made, graders, MicrobatchSettings())
        evaluation = fleet.evaluate_center(batch, DECODING)
    lengths = []
    for example, rollout in zip(batch, evaluation.rollouts, strict=True):
        asked, last = model_turns(example, rollout)[-1]
        lengths.append(len(made.encoder.encode(asked)) + len(last.tokens))
        assert rollout.completion.prompt_tokens == lengths[-1] - len(rollout.completion.tokens)
    # Three turns of 5 tokens after 6 characters, and " left: 2" and " left: 1" between them.
    assert lengths == [6 + 3 * 5 + 2 * 8, 6 + 5]
    assert fleet.counts["forward_tokens"] == sum(lengths)
    parts = [Completion("a", (1, 2), "eos", 10), Completion("b", (3,), "stop", 17)]
    other = Completion("c", (4, 5), "length", 6)
    assert joined([parts, [other]]) == Completion("a\nb\nc", (1, 2, 3, 4, 5), "length", 18 + 8 - 5)
    assert joined([]) == Completion("", (), "length", 0)


def test_the_limit_of_turns_ends_an_episode_unless_its_last_turn_did(made):
    ((long, exact),) = play(made, [None], game(9, 2), 2)
    assert (long.ended, long.grade.reward, len(long.turns)) == ("max_turns", 2.0, 3)
    assert (exact.ended, exact.grade.reward) == ("done", 2.0)


def test_a_full_context_ends_an_episode_with_what_it_has_earned():
    made = inprocess("qwen2", SPACES["rank 1"])
    made.encoder.context_tokens = 40
    ((rollout,),) = play(made, [None], game(9), 9)
    replies = [turn for turn in rollout.turns if turn.role == "assistant"]
    assert rollout.ended == "context"
    assert 0 < len(replies) < 9
    assert rollout.grade.reward == len(replies)
    assert all(turn.tokens for turn in replies)


def test_the_first_message_includes_what_the_environment_says(made):
    ((rollout,),) = play(made, [None], game(1, opening="Begin!"), 2)
    assert rollout.turns[0] == Turn("user", "Begin!")
    asked = Example(7, "game 0\nBegin!", "", chat=False)
    assert made.generate([None], [asked], DECODING)[0][0].tokens == rollout.turns[1].tokens


def test_an_episode_that_ends_before_the_first_turn_leaves_the_others_their_rows(made):
    rows = play(made, [None, None], game(0, 3, 0, 1))
    for number, row in enumerate(rows):
        assert [one.grade.reward for one in row] == [-1.0, 3.0, -1.0, 1.0]
        assert [one.member for one in row] == [number] * 4
        assert (row[0].turns, row[0].completion.tokens, row[0].ended) == ((), (), "done")


def test_an_environment_that_fails_ends_its_own_episode():
    made = engine("toy", SPACES["rank 1"])
    with GraderPool(fails_midway, {"won": 1.0}, {"won": -1.0}, max_turns=3) as graders:
        rows = play_episodes(made, graders, [None, None], game(2, 5), DECODING)
    for row in rows:
        at_step, until_limit = row
        assert at_step.ended == "failure"
        assert (at_step.grade.reward, at_step.grade.failure) == (-1.0, "ValueError: no such move")
        assert len(at_step.turns) == 4
        assert (until_limit.ended, until_limit.grade.reward) == ("max_turns", 0.5)


def test_members_meet_the_same_seeds_which_differ_by_generation_and_example():
    made = engine("toy", SPACES["rank 1"])
    SEEDS.clear()
    with pool(3) as graders:
        play_episodes(made, graders, population(4).members, game(2, 2), DECODING)
    assert len(set(SEEDS)) == 2
    later = Decoding(5, noise_generation=1)
    example = game(1)[0]
    seeds = {environment_seed(example, one) for one in (DECODING, later)}
    assert len(seeds) == 2
    assert environment_seed(example, DECODING) == 580239402


def test_microbatches_give_one_table_of_rewards():
    made = engine("toy", SPACES["rank 1"])
    members = population(4).members
    batch = game(1, 2, 3, 4, 5)
    with pool(4) as graders:
        cut = evaluate_members(
            made, graders, members, batch, MicrobatchSettings(members=3, examples=2), DECODING
        )
    assert cut.rewards.tolist() == [[1.0, 2.0, 3.0, 4.0, 4.0]] * 4
    assert [(one.member, one.example) for one in cut.rollouts] == [
        (member, 7 + place) for member in range(4) for place in range(5)
    ]
    assert cut.tokens == sum(len(one.completion.tokens) for one in cut.rollouts)


def test_sigma_is_calibrated_on_the_first_turn():
    episode = Rollout(
        0,
        7,
        Completion("a\nb", (1, 2, 3), "eos", 4),
        Grade(1.0, {"turns": 1.0}),
        (Turn("user", "Begin!"), Turn("assistant", "a", (1, 2)), Turn("assistant", "b", (3,))),
        "done",
    )
    example = game(2)[0]
    (asked, answer), (later, last) = model_turns(example, episode)
    assert (asked.prompt, asked.turns, answer.tokens) == ("game 0\nBegin!", (), (1, 2))
    assert (later.prompt, later.turns, last.tokens) == ("game 0\nBegin!", episode.turns[1:2], (3,))
    made = engine("toy", SPACES["rank 1"])
    batch = game(2, 3, opening="Begin!")
    with pool(4) as graders:
        fleet = LocalFleet(made, graders, MicrobatchSettings())
        divergence = MemberKl(fleet, lambda _generation: batch, 0, DECODING)
        divergence(population(2).members)
    assert [one.prompt for one in divergence._examples] == ["game 0\nBegin!", "game 1\nBegin!"]
    assert all(len(one.tokens) <= DECODING.max_new_tokens for one in divergence._written)
    alone = Rollout(0, 7, Completion("a", (1,), "eos", 4), Grade(math.nan, {}))
    assert model_turns(example, alone) == [(example, alone.completion)]


@pytest.mark.parametrize("chat", [False, True])
def test_every_turn_is_scored_after_what_the_model_had_read(chat, made):
    """Greedy turns are the most probable tokens of their contexts, on a model that was not told."""
    batch = [replace(one, chat=chat) for one in game(3, 2, opening="Begin!")]
    ((first, second),) = play(made, [None], batch)
    turns = [*model_turns(batch[0], first), *model_turns(batch[1], second)]
    assert len(turns) == 5
    for asked, written in turns:
        again = made.generate(
            [None], [asked], replace(DECODING, max_new_tokens=len(written.tokens))
        )
        assert again[0][0].tokens == written.tokens


def test_a_turn_that_ended_itself_is_not_ended_again(made):
    end, encoder = made.pretrained.tokenizer.eos_token_id, made.encoder
    example = replace(game(1)[0], chat=True)
    ended, cut = Completion("a", (5, end), "eos", 1), Completion("a", (5, 6), "length", 1)
    for written in (ended, cut):
        turns = (Turn("assistant", "a", written.tokens), Turn("user", "go on"))
        answer = encoder.encode_answer(example, written, "go on")
        continued = encoder.encode(replace(example, turns=turns))
        assert continued == [*encoder.encode(example), *written.tokens, *answer]
