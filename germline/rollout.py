"""Evaluate members on examples: engines generate completions, and graders grade them.

Work is cut into microbatches of fixed size. A microbatch's completions are graded in worker
processes while the next microbatch is being generated.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from germline.config import MicrobatchSettings
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
class GraderProtocol(Protocol):
    """A grader of texts that returns futures of grades."""

    def submit(self, texts: Sequence[str], examples: Sequence[Example]) -> Future[list[Grade]]:
        """Grade each text on its example."""


@dataclass(frozen=True)
class GeneratedMicrobatch:
    """One microbatch after generation: its position, completions and pending grades."""

    first_member: int
    first_example: int
    completions: list[list[Completion]]
    grades: Future[list[Grade]]


@dataclass(frozen=True)
class Microbatch:
    """One microbatch before generation: its position, members and examples."""

    first_member: int
    first_example: int
    members: Sequence[Perturbation | None]
    examples: Sequence[Example]

    def with_completions(
        self, completions: list[list[Completion]], graders: GraderProtocol
    ) -> GeneratedMicrobatch:
        """Return the microbatch with its completions, and send them to the graders."""
        texts = [completion.text for row in completions for completion in row]
        grades = graders.submit(texts, [*self.examples] * len(completions))
        return GeneratedMicrobatch(self.first_member, self.first_example, completions, grades)


def evaluate_members(
    engine: Engine,
    graders: GraderProtocol,
    members: Sequence[Perturbation | None],
    examples: Sequence[Example],
    microbatch: MicrobatchSettings,
    decoding: Decoding,
) -> Evaluation:
    """Evaluate every member on every example, microbatch by microbatch, and collect the rewards.

    Args:
        engine: one copy of the weights.
        graders: grade the completions.
        members: perturbations; None is the center.
        examples: the batch, the same for all members.
        microbatch: members x examples computed together.
        decoding: the same for all members.
    """
    started = time.perf_counter()
    generated = [
        part.with_completions(engine.generate(part.members, part.examples, decoding), graders)
        for part in cut_microbatches(members, examples, microbatch)
    ]
    generated_s = time.perf_counter() - started
    return gather_rewards(generated, len(members), examples, generated_s)


def cut_microbatches(
    members: Sequence[Perturbation | None], examples: Sequence[Example], size: MicrobatchSettings
) -> list[Microbatch]:
    """Cut members x examples into microbatches; they do not depend on the engines."""
    together = members_per_microbatch(size, len(examples))
    return [
        Microbatch(i, j, members[i : i + together], examples[j : j + size.examples])
        for i, j in microbatch_starts(len(members), len(examples), size)
    ]


def center_microbatch(size: MicrobatchSettings) -> MicrobatchSettings:
    """Return the size of microbatches of the center alone: one member, as many rows in examples."""
    return MicrobatchSettings(
        members=1, examples=members_per_microbatch(size, size.examples) * size.examples
    )


def members_per_microbatch(microbatch: MicrobatchSettings, examples: int) -> int:
    """Return how many members one microbatch holds, for a batch of so many examples.

    Rows that fit a processor's cache run fastest; a few examples leave room for more members.
    """
    if microbatch.members is not None:
        return microbatch.members
    return max(1, microbatch.rows // min(microbatch.examples, examples))


def microbatch_starts(
    members: int, examples: int, size: MicrobatchSettings
) -> list[tuple[int, int]]:
    """Return (first member, first example) of every microbatch."""
    return [
        (first_member, first_example)
        for first_member in range(0, members, members_per_microbatch(size, examples))
        for first_example in range(0, examples, size.examples)
    ]


def gather_rewards(
    generated: Sequence[GeneratedMicrobatch],
    members: int,
    examples: Sequence[Example],
    decode_seconds: float,
) -> Evaluation:
    """Put microbatches, in any order, into one table of rewards."""
    rewards = np.full((members, len(examples)), np.nan)
    rollouts = []
    for part in sorted(generated, key=lambda part: (part.first_member, part.first_example)):
        grades = iter(part.grades.result())
        for i, row in enumerate(part.completions, start=part.first_member):
            for j, completion in enumerate(row, start=part.first_example):
                grade = next(grades)
                rewards[i, j] = grade.reward
                rollouts.append(Rollout(i, examples[j].index, completion, grade))
    rollouts.sort(key=lambda rollout: rollout.member)
    tokens = sum(len(rollout.completion.tokens) for rollout in rollouts)
    return Evaluation(rewards, tuple(rollouts), tokens, decode_seconds)
