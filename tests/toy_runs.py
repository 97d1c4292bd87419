"""Small runs for tests of the loop and of run directories: the toy engine, in milliseconds."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import germline
from germline.config import Config, load_config
from germline.graders import pool
from germline.protocols import EpisodeGrader, Grader, Task
from germline.record import RunDirectory
from germline.run import Training
from germline.types import Example, Grade

# Single letters end a completion and tokens are sampled: lengths, and so rewards, always differ.
LETTERS = list("etaoins ")

SETTINGS: dict[str, Any] = {
    "task": {"kind": "conciseness", "max_new_tokens": 16, "stop": LETTERS, "temperature": 1.0},
    "engine": "toy",
    "batch_size": 4,
    "generations": 4,
    "microbatch": {"members": 2, "examples": 3},
    # A machine that stands still for two seconds must not fail a completion: no two runs compared
    # bit for bit would have the same rewards.
    "graders": {"timeout_s": 60.0},
    "strategy": {"population": 6, "sigma": 0.3, "learning_rate": 0.1},
    "held_out": {"every": 2, "examples": 5, "temperature": None},
    "record": {"snapshot_every": 2, "tensorboard": False},
}
ADAM_FULL = ("space=full", "strategy.optimizer=adam")

MACHINE = ("timing", "tokens_per_s", "written_at", "peak_memory_mb", "budget")
"""Columns that depend on the machine and differ between two runs with the same digests."""


def settings(*overrides: str) -> Config:
    """Return the config of a toy run."""
    return load_config(SETTINGS, overrides)


def finish(training: Training) -> Path:
    """Run a training to its end and return its folder."""
    for _ in training:
        pass
    return training.directory.path


def run(folder: Path, *overrides: str) -> Path:
    """Train a toy model in a new folder."""
    return finish(germline.train(settings(*overrides), folder))


def stopped_after(training: Training, generations: int) -> Path:
    """Let a training run so many generations, then ask it to stop."""
    for done, _ in enumerate(training, start=1):
        if done == generations:
            training.stop()
    return training.directory.path


def journal(folder: Path) -> bytes:
    """Return the bytes that decide what a run was."""
    return (folder / "journal.jsonl").read_bytes()


class GradedHere:
    """Grades at once, without processes: the part of the contract the loop sees, for fast tests."""

    max_turns: int | None = None

    def __init__(self, task: Task) -> None:
        self.task = task

    def submit(self, texts: Sequence[Any], examples: Sequence[Example]) -> Future[list[Grade]]:
        """Grade each text on its example."""
        future: Future[list[Grade]] = Future()
        future.set_result([self._grade(*one) for one in zip(texts, examples, strict=True)])
        return future

    def _grade(self, text: str, example: Example) -> Grade:
        parts = self.task.grader(text, example)
        return Grade(sum(self.task.rubric[name] * parts[name] for name in parts), parts)


class InProcessPool(pool.InProcessPool):
    """The graders of a run without a process: graded at once, for tests of many short runs."""

    def __init__(
        self,
        grader: Grader | EpisodeGrader,
        rubric: Mapping[str, float],
        floor: Mapping[str, float],
        *,
        max_turns: int | None = None,
        **_limits: float | None,
    ) -> None:
        super().__init__(grader, rubric, floor, timeout_s=60.0, max_turns=max_turns)

    def __reduce__(self) -> tuple[Any, ...]:
        """Make a pool with a process of its own where engines elsewhere grade."""
        return partial(pool.GraderPool, **{**self._arguments, "workers": 1}), ()


@contextlib.contextmanager
def grading_in_process() -> Iterator[None]:
    """Let runs grade without a process; a pool that would start one fails."""
    error = AssertionError("a grader process is started in a test that grades in this process")
    with (
        mock.patch("germline.run.build_parts.GraderPool", InProcessPool),
        mock.patch("germline.graders.pool.WorkerHandle", side_effect=error),
    ):
        yield


def without_time(rows):
    return [{key: value for key, value in row.items() if key not in MACHINE} for row in rows]


def rows(folder):
    """Return all that a run directory tells, clocks left out."""
    directory = RunDirectory.open(folder)
    return without_time(directory.generations()), directory.rollouts(), directory.held_out()
