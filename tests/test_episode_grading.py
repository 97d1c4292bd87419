"""The grader pool with episodes: turn by turn, and what a turn may do to its environment."""

import math

import pytest

from germline.example import Transcript
from germline.graders.pool import GraderPool, InProcessPool
from germline.types import Example, GermlineError, Grade
from tests import misbehaving_graders
from tests.hang_limit import HANG_S

RUBRIC = {"good": 2.0, "example": 0.0}
FLOOR = {"good": -1.0, "example": 0.0}


def open_pool(timeout_s=30.0):
    return GraderPool(misbehaving_graders.play, RUBRIC, FLOOR, timeout_s=timeout_s, max_turns=3)


def play(*replies, timeout_s=30.0, is_final=False, prompt="?"):
    example = Example(index=4, prompt=prompt, answer="", chat=False)
    transcript = Transcript(replies, seed=7, is_final=is_final)
    with open_pool(timeout_s) as pool:
        return pool.submit([transcript], [example]).result(timeout=HANG_S)[0]


def test_an_episode_is_answered_with_a_message_until_it_has_ended():
    starts, goes_on, ends = play(), play("hello"), play("hello", "end")
    assert [starts.observation, goes_on.observation, ends.observation] == ["seed 7", "turn 1", None]
    assert math.isnan(starts.reward)
    assert math.isnan(goes_on.reward)
    assert goes_on.failure is None
    assert ends == Grade(6.0, {"good": 3.0, "example": 4.0})


def test_an_episode_at_its_last_turn_is_graded():
    assert play("hello", is_final=True).reward == 10.0


def test_an_environment_that_goes_on_after_the_last_turn_is_an_error():
    with pytest.raises(GermlineError, match=r"is_final.*'turn 1'.*seed 7, last reply 'cut me'"):
        play("cut me", is_final=True)


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        ("raise of the model", "ValueError: of the model"),
        ("loop", "timeout after 1.0 s"),
        ("die", "the grader process died twice: exit status 3"),
    ],
)
def test_a_reply_that_breaks_its_environment_earns_the_floor(reply, failure):
    assert play("a", reply, timeout_s=1.0) == Grade(-2.0, FLOOR, failure)


@pytest.mark.parametrize("misdeed", ["raise", "loop", "die"])
def test_an_environment_that_fails_before_the_first_reply_is_an_error(misdeed):
    with pytest.raises(GermlineError, match=r"fails before the model's first reply.*example 4"):
        play(prompt=misdeed, timeout_s=1.0)


def test_a_text_is_the_only_reply_of_its_episode():
    example = Example(index=0, prompt="?", answer="", chat=False)
    pool = InProcessPool(misbehaving_graders.play, RUBRIC, FLOOR, timeout_s=9.0, max_turns=3)
    with pool:
        (as_text,) = pool.submit(["hello"], [example]).result()
        (started,) = pool.submit([Transcript((), 3)], [example]).result()
    assert as_text.reward == 10.0
    assert started.observation == "seed 3"
