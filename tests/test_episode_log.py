"""The turns of episodes that an endpoint has answered: which belong together, in which order."""

from germline.endpoint.episode_log import RUNS, EpisodeLog, LoggedTurn
from germline.types import Completion, Example

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
