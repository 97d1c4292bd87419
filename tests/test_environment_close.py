"""The end of an environment: it is closed, and a `close()` that hangs or fails costs nothing."""

import contextlib

import pytest

from germline.environments.episode import EpisodeRubric
from germline.environments.grader import EnvironmentGrader
from germline.example import Transcript
from germline.graders.pool import GraderPool, InProcessPool
from germline.graders.worker_messages import InvalidGradeError, PartsFailedError
from germline.types import Example, Grade
from tests import misbehaving_environments
from tests.hang_limit import HANG_S
from tests.misbehaving_graders import MISDEEDS
from tests.slow_cases import mostly_slow

RUBRIC = EpisodeRubric({"reward": 1.0}, {"reward": -1.0})


def grader(factory):
    return EnvironmentGrader("mine", factory, RUBRIC)


def example(**row):
    return Example(index=0, prompt="?", answer="", chat=False, facts=row)


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
