"""Play examples with members and grade what they wrote: the only room where engines and tasks meet.

Work is cut into cells of fixed size. A cell's completions are graded in worker processes while the
next cell is being generated.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from germline.config import Cell
from germline.protocols import Engine
from germline.types import (
    Completion,
    Decoding,
    Evaluation,
    Example,
    Grade,
    Perturbation,
    Rollout,
)


@runtime_checkable
class Graders(Protocol):
    """Whoever grades: texts in, grades out, later."""

    def submit(self, texts: Sequence[str], examples: Sequence[Example]) -> Future[list[Grade]]:
        """Grade each text on its example."""


@dataclass(frozen=True)
class PlayedCell:
    """One cell after generation: where it stands, what was written, and the grades to come."""

    first_member: int
    first_example: int
    completions: list[list[Completion]]
    grades: Future[list[Grade]]


@dataclass(frozen=True)
class OpenCell:
    """One cell before generation: where it stands, and who plays what."""

    first_member: int
    first_example: int
    members: Sequence[Perturbation | None]
    examples: Sequence[Example]

    def played(self, completions: list[list[Completion]], graders: Graders) -> PlayedCell:
        """Take in what was written, and send it to be graded."""
        texts = [completion.text for row in completions for completion in row]
        grades = graders.submit(texts, [*self.examples] * len(completions))
        return PlayedCell(self.first_member, self.first_example, completions, grades)


def play(
    engine: Engine,
    graders: Graders,
    members: Sequence[Perturbation | None],
    examples: Sequence[Example],
    cell: Cell,
    decoding: Decoding,
) -> Evaluation:
    """Let every member play every example, cell by cell, and collect the rewards.

    Args:
        engine: one copy of the weights.
        graders: where completions go.
        members: perturbations; None is the centre.
        examples: the batch, the same for all members.
        cell: members x examples computed together.
        decoding: the same for all members.
    """
    started = time.perf_counter()
    played = [
        one.played(engine.generate(one.members, one.examples, decoding), graders)
        for one in cut(members, examples, cell)
    ]
    generated_s = time.perf_counter() - started
    return gather(played, len(members), examples, generated_s)


def cut(
    members: Sequence[Perturbation | None], examples: Sequence[Example], size: Cell
) -> list[OpenCell]:
    """Cut the playing of examples by members into cells, whoever plays them."""
    together = members_per_cell(size, len(examples))
    return [
        OpenCell(i, j, members[i : i + together], examples[j : j + size.examples])
        for i, j in cells(len(members), len(examples), size)
    ]


def centre_cell(size: Cell) -> Cell:
    """Return the cells of the centre alone: one member, so they hold as many rows in examples."""
    return Cell(members=1, examples=members_per_cell(size, size.examples) * size.examples)


def members_per_cell(cell: Cell, examples: int) -> int:
    """Return how many members one cell holds, for a batch of so many examples.

    Rows that fit a processor's cache run fastest; a few examples leave room for more members.
    """
    if cell.members is not None:
        return cell.members
    return max(1, cell.rows // min(cell.examples, examples))


def cells(members: int, examples: int, size: Cell) -> list[tuple[int, int]]:
    """Return (first member, first example) of every cell, whoever computes them."""
    return [
        (first_member, first_example)
        for first_member in range(0, members, members_per_cell(size, examples))
        for first_example in range(0, examples, size.examples)
    ]


def gather(
    played: Sequence[PlayedCell], members: int, examples: Sequence[Example], generation_s: float
) -> Evaluation:
    """Put cells, in whatever order they came, into one table of rewards."""
    rewards = np.full((members, len(examples)), np.nan)
    rollouts = []
    for one in sorted(played, key=lambda cell: (cell.first_member, cell.first_example)):
        grades = iter(one.grades.result())
        for i, row in enumerate(one.completions, start=one.first_member):
            for j, completion in enumerate(row, start=one.first_example):
                grade = next(grades)
                rewards[i, j] = grade.reward
                rollouts.append(Rollout(i, examples[j].index, completion, grade))
    rollouts.sort(key=lambda rollout: rollout.member)
    tokens = sum(len(rollout.completion.tokens) for rollout in rollouts)
    return Evaluation(rewards, tuple(rollouts), tokens, generation_s)
