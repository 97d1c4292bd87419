"""Environments: what a reply gets back, what an episode earns, and whose fault a failure is."""

import contextlib
import json
import math
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from germline.environments import StepResult
from germline.environments.adapters import adapt
from germline.environments.episode import EpisodeRubric
from germline.environments.grader import EnvironmentGrader, EpisodeCache
from germline.example import Transcript
from germline.graders.pool import GraderPool, InProcessPool
from germline.graders.worker_messages import GradeMissingError, InvalidGradeError, PartsFailedError
from germline.types import Example, GermlineError, Grade
from tests import misbehaving_environments
from tests.hang_limit import HANG_S
from tests.misbehaving_graders import MISDEEDS
from tests.slow_cases import mostly_slow

RUBRIC = EpisodeRubric({"reward": 1.0}, {"reward": -1.0})


def example(**row):
    return Example(index=0, prompt="?", answer="", chat=False, facts=row)


def grader(factory, rubric=RUBRIC, size=8):
    return EnvironmentGrader("mine", factory, rubric, EpisodeCache(size))


def play(factory, *replies, is_final=False, rubric=RUBRIC, seed=5, **row):
    return grader(factory, rubric)(Transcript(replies, seed, is_final), example(**row))


def environment(**methods):
    """Return a class with `reset` and these methods."""
    return type("Mine", (), {"reset": lambda _self, **_row: None, **methods})


def answering(result):
    return environment(step=lambda _self, _reply: result)


# steps


def test_rewards_of_the_steps_add_up_until_the_episode_is_done():
    obedient = misbehaving_environments.Obedient
    assert play(obedient, word="hello") == "hello 5"
    assert play(obedient, "a", word="hello") == "after a"
    assert play(obedient, "a", "b", "end", word="hello") == {"reward": 0.75}


def test_an_episode_that_is_cut_keeps_its_rewards_and_parts_never_given_get_their_floor():
    rubric = EpisodeRubric({"reward": 1.0, "won": 1.0}, {"reward": 0.0, "won": -2.0})
    cut = play(misbehaving_environments.Obedient, "a", is_final=True, rubric=rubric, word="x")
    assert cut == {"reward": 0.25, "won": -2.0}


@pytest.mark.parametrize("method", ["reset", "step", "get_reward"])
def test_what_no_reply_causes_is_missing_and_not_the_floor(method):
    def fail(_self, *_reply, **_row):
        raise GradeMissingError("the service is away")

    methods = {"step": lambda _self, _reply: ("", True, 1.0), method: fail}
    mine = grader(environment(**methods))
    with InProcessPool(mine, RUBRIC.weights, RUBRIC.floors, timeout_s=20.0, max_turns=3) as pool:
        (grade,) = pool.submit([Transcript(("a",), 0)], [example()]).result()
    assert math.isnan(grade.reward)
    assert math.isnan(grade.parts["reward"])
    assert grade.failure == "the service is away"


def test_reset_gets_the_fields_it_names_and_the_seed_unless_the_row_has_one():
    class Named:
        def reset(self, a, seed=None):
            return f"{a} {seed}"

    class All:
        def reset(self, **row):
            return json.dumps(row)

    assert adapt(Named()).reset({"a": 1, "b": 2}, 3) == "1 3"
    assert adapt(Named()).reset({"a": 1, "seed": 9}, 3) == "1 9"
    assert adapt(All()).reset({"prompt": "?", "b": 2}, 3) == '{"prompt": "?", "b": 2}'


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        (None, r"step\(\), returned None"),
        (("on", 1.0, False), r"`done` from step\(\), returned 1.0"),
        ((7, False, None), r"step\(\) as text or None, returned 7"),
        (("a\ud800", False), "returned .*'a.*ud800', False"),
        (("a\ud800", False, 0.0), r"Unicode .* step\(\).*'a.ud800'"),
        (("", True, {"reward": "much"}), "'reward', gave 'much'"),
        (("", True, {"luck": 1.0}), r"'luck' \(1.0\), which is not in the rubric"),
        (("", True, None), "no reward for an episode that has ended"),
    ],
)
def test_a_wrong_step_is_an_error_that_names_value_and_remedy(result, complaint):
    with pytest.raises(InvalidGradeError, match=complaint):
        play(answering(result), "a")


@pytest.mark.parametrize("value", [float("nan"), -float("inf"), pytest.param(10**400, id="huge")])
def test_a_reward_that_is_not_finite_is_caused_by_the_reply_and_earns_the_floor(value):
    with pytest.raises(PartsFailedError, match=r"the reward 'reward' is (nan|-?inf): step") as step:
        play(answering(("", True, value)), "a")
    assert step.value.values == {}
    at_end = environment(step=lambda _self, _reply: ("", True, None), get_reward=lambda _: value)
    with pytest.raises(PartsFailedError, match=r"the reward 'reward' is (nan|-?inf): step"):
        play(at_end, "a")
    with pytest.raises(PartsFailedError, match="the reward 'reward' is inf"):
        play(answering(("", False, 1e308)), "a", "b")  # the sum


def test_an_episode_that_is_cut_and_for_which_get_reward_returns_none_is_an_error():
    def silent(reward):
        step = StepResult("on", done=False)
        return environment(step=lambda _self, _reply: step, get_reward=lambda _self: reward)

    with pytest.raises(InvalidGradeError, match="no reward for an episode that was cut"):
        play(silent(None), "a", is_final=True)
    assert play(silent({}), "a", is_final=True) == {"reward": -1.0}


def test_get_reward_adds_to_the_rewards_of_the_steps():
    step = StepResult("", done=True, rewards={"reward": 0.5})
    both = environment(step=lambda _self, _reply: step, get_reward=lambda _self: 0.25)
    assert play(both, "a") == {"reward": 0.75}


def test_an_exception_names_the_line_and_is_the_fault_of_the_reply_after_reset_only():
    def fail(_self, word):
        raise ValueError(word)

    place = r"ValueError: a \(test_env.*line \d"
    with pytest.raises(PartsFailedError, match=rf"step\(\): {place}"):
        play(environment(step=fail), "a")
    with pytest.raises(InvalidGradeError, match=rf"reset\(\).*{place}"):
        play(environment(reset=fail), word="a")
    for message in ("a\ud800", ["content"]):  # no text
        with pytest.raises(InvalidGradeError, match=r"from reset\(\)"):
            play(environment(reset=lambda _self, said=message: said))


# live environments


def counting():
    made = []

    class Counting(misbehaving_environments.Obedient):
        def __init__(self):
            made.append(self)
            self.closed = 0

        def close(self):
            self.closed += 1

    return Counting, made


def test_an_episode_is_continued_by_the_same_instance_which_is_closed_at_its_end():
    factory, made = counting()
    played = grader(factory)
    for replies in ((), ("a",), ("a", "b"), ("a", "b", "end")):
        played(Transcript(replies, 0), example(word="x"))
    assert [mine.closed for mine in made] == [1]


def test_an_episode_that_is_cut_after_its_last_message_is_not_played_again():
    factory, made = counting()
    played = grader(factory)
    for is_final in (False, True):
        answer = played(Transcript(("a",), 0, is_final), example(word="x"))
    assert answer == {"reward": 0.25}
    assert [mine.closed for mine in made] == [1]
    for replies in ((), ("a",), ("a",), ("a", "b"), ("a", "c")):  # of two members
        played(Transcript(replies, 0), example(word="x"))
    assert len(made) == 3


def test_rows_and_seeds_with_the_same_replies_are_not_mixed_up():
    played = grader(misbehaving_environments.Obedient)
    asked = [Transcript((), 0), Transcript((), 1)]
    for word in ("held", "trained"):
        assert [played(sent, example(word=word)) for sent in asked] == [f"{word} 0", f"{word} 1"]
    factory, made = counting()
    played = grader(factory)
    played(Transcript((), 0), example(word="held"))
    played(Transcript(("a",), 0), example(word="trained"))
    assert len(made) == 2


def test_too_many_live_episodes_are_closed_and_made_again_when_they_are_needed():
    factory, made = counting()
    played = grader(factory, size=2)
    for seed in (0, 1, 2):
        played(Transcript((), seed), example(word="x"))
    assert [mine.closed for mine in made] == [1, 1, 0]
    assert played(Transcript(("a", "end"), 0), example(word="x")) == {"reward": 0.5}


def test_without_memory_the_live_episodes_are_given_up():
    made = []

    class Greedy:
        def __init__(self):
            made.append(self)

        def reset(self):
            if len(made) == 3:
                raise MemoryError
            return "ready"

        def close(self):
            made.remove(self)

    played = grader(Greedy)
    assert [played(Transcript((), seed), example()) for seed in (0, 1, 2)] == ["ready"] * 3


def test_an_environment_that_ends_earlier_when_played_again_is_called_not_deterministic():
    ends = iter([False, True])
    moody = environment(step=lambda _self, _reply: StepResult("", next(ends), 1.0))
    played = grader(moody)
    played(Transcript(("a",), 3), example())
    played.cache.clear()
    with pytest.raises(InvalidGradeError, match=r"not deterministic.*seed 3.*turn 1 of 2"):
        played(Transcript(("a", "b"), 3), example())


def test_an_episode_that_is_played_after_a_pool_has_no_time_limit():
    mine = grader(misbehaving_environments.Obedient)
    with InProcessPool(mine, RUBRIC.weights, RUBRIC.floors, timeout_s=60.0, max_turns=3) as pool:
        pool.submit([Transcript(("a",), 0)], [example(word="x")]).result()
    before = signal.getitimer(signal.ITIMER_REAL)
    mine(Transcript(("a",), 1), example(word="x"))
    assert signal.getitimer(signal.ITIMER_REAL)[0] <= before[0]


# in worker processes


def submit(factory, *transcripts, timeout_s=30.0, word="x"):
    with GraderPool(
        grader(factory), RUBRIC.weights, RUBRIC.floors, timeout_s=timeout_s, max_turns=9
    ) as pool:
        futures = [pool.submit([sent], [example(word=word)]) for sent in transcripts]
        return [future.result(timeout=HANG_S)[0] for future in futures]


def test_a_step_that_hangs_or_dies_earns_the_floor_and_loses_no_other_episode():
    replies = ((), ("hello",), ("loop-in-c",), ("die",), ("hello", "end"))
    transcripts = [Transcript(said, 0) for said in replies]
    grades = submit(misbehaving_environments.Obedient, *transcripts, timeout_s=2.0)
    assert [grade.observation for grade in grades] == ["x 0", "after hello", None, None, None]
    assert [grade.reward for grade in grades[2:]] == [-1.0, -1.0, 0.5]
    assert [grade.failure for grade in grades[2:]] == [
        "timeout after 2.0 s",
        "the grader process died twice: exit status 3",
        None,
    ]


def test_replies_that_are_played_again_have_the_time_of_one_step_each():
    (late,) = submit(
        misbehaving_environments.Slow, Transcript(("a", "b", "c", "d", "end"), 0), timeout_s=2.0
    )
    assert late == Grade(1.25, {"reward": 1.25})


def test_an_async_step_is_stopped_and_the_next_one_runs():
    transcripts = [Transcript(("0",), 0), Transcript(("60",), 0), Transcript(("0", "0"), 0)]
    grades = submit(misbehaving_environments.Sleeper, *transcripts, timeout_s=2.0)
    assert [grade.observation for grade in grades] == ["slept", None, "slept"]
    assert grades[1].failure == "timeout after 2.0 s"


@pytest.mark.parametrize(
    ("misdeed", "said", "replies"),
    [
        ("raise", "fails in reset.*ValueError: at reset", ()),
        ("loop", "TimeUp: longer than graders.timeout_s", ("a", "b")),
    ],
)
def test_a_reset_that_fails_stops_the_run_whatever_was_replied(misdeed, said, replies):
    with pytest.raises(GermlineError, match=f"the environment mine .*{said}"):
        submit(
            misbehaving_environments.Obedient, Transcript(replies, 0), timeout_s=1.0, word=misdeed
        )


def test_a_cache_forgets_the_replies_of_episodes_that_were_taken():
    cache: Any = EpisodeCache()
    row = {"n": 1}
    for seed in range(3):
        cache.put((0, seed, ("a long reply",)), SimpleNamespace(row=row))
        assert cache.take((0, seed, ("a long reply",)), row)
    assert not cache._episodes


@pytest.mark.parametrize("misdeed", mostly_slow(["loop", "raise", "leave"], quick={"raise"}))
def test_a_close_that_hangs_or_fails_costs_no_episode_its_score(misdeed, capfd):
    mine = grader(misbehaving_environments.Unclosable)
    with GraderPool(mine, RUBRIC.weights, RUBRIC.floors, timeout_s=1.0, max_turns=9) as pool:
        ends = [Transcript(("end",), seed) for seed in range(2)]
        grades = pool.submit(ends, [example(word=misdeed)] * 2).result(timeout=HANG_S)
    assert grades == [Grade(0.25, {"reward": 0.25})] * 2
    said = {
        "loop": "close() fails: TimeUp: longer than graders.timeout_s (",
        "raise": "close() fails: ValueError: at close (misbehaving_environments.py, line ",
        "leave": "close() fails: SystemExit: bye (misbehaving_environments.py, line ",
    }[misdeed]
    assert capfd.readouterr().err.count(f"the environment Unclosable: {said}") == 1


def test_a_step_after_a_close_that_hangs_has_its_time_limit():
    class Greedy(misbehaving_environments.Unclosable):
        memory = 0

        def step(self, reply):
            if reply == "full":
                Greedy.memory += 1
                if Greedy.memory == 1:
                    raise MemoryError
                MISDEEDS["loop"]("")
            return super().step(reply)

    mine = grader(Greedy)
    with InProcessPool(mine, RUBRIC.weights, RUBRIC.floors, timeout_s=0.5, max_turns=3) as pool:
        played = [pool.submit([Transcript(("full",), 0)], [example(word="loop")]).result()]
    assert played[0][0].failure == "timeout after 0.5 s"


@pytest.mark.parametrize("failing", ["reset", "step", "get_reward", "nothing"])
def test_an_environment_that_fails_is_closed(failing):
    closed = []

    def fail(_self, *_reply, **_row):
        if failing != "nothing":
            raise ValueError(failing)

    methods = {"step": lambda _self, _reply: ("", True, 1.0), "get_reward": lambda _self: None}
    methods |= {"reset": lambda _self: None, failing: fail}
    mine = type("Mine", (), methods | {"close": lambda self: closed.append(self)})
    with contextlib.suppress(PartsFailedError, InvalidGradeError):
        grader(mine)(Transcript(("a",), 0), example())
    assert len(closed) == 1
