"""Evaluate members on examples: engines generate completions, and graders grade them.

Work is cut into microbatches of fixed size. A microbatch's completions are graded in worker
processes while the next microbatch is being generated. Where the task has episodes of several
turns, `germline.episodes` plays those of a microbatch.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from germline.config import Config, MicrobatchSettings
from germline.episodes import play_episodes
from germline.protocols import Engine, GraderProtocol
from germline.types import (
    Decoding,
    Evaluation,
    Example,
    GermlineError,
    Grade,
    Perturbation,
    Rollout,
)


@dataclass(frozen=True)
class Microbatch:
    """One microbatch before generation: its position, members and examples."""

    first_member: int
    first_example: int
    members: Sequence[Perturbation | None]
    examples: Sequence[Example]

    @property
    def place(self) -> tuple[int, int]:
        """First member and first example."""
        return self.first_member, self.first_example

    def generated(self, result: Any, graders: GraderProtocol) -> "GeneratedMicrobatch":
        """Return the microbatch with completions, which are sent to the graders, or episodes."""
        found = [len(row) for row in result]
        if found != [len(self.examples)] * len(self.members):
            raise GermlineError(
                f"engine: {len(self.members)} members x {len(self.examples)} examples were asked "
                f"for, and {len(found)} members x {found[:1]} examples came back"
            )
        if graders.max_turns is not None:
            return GeneratedMicrobatch(self, result)
        texts = [completion.text for row in result for completion in row]
        grades = graders.submit(texts, [*self.examples] * len(result))
        return GeneratedMicrobatch(self, result, grades)


@dataclass(frozen=True)
class GeneratedMicrobatch:
    """One microbatch after generation.

    Attributes:
        result: `[members][examples]`, completions; of episodes, rollouts without `grades`.
        grades: of the completions; they may be pending.
    """

    microbatch: Microbatch
    result: Sequence[Sequence[Any]]
    grades: Future[list[Grade]] | None = None

    def rollouts(self) -> Iterator[tuple[int, Rollout]]:
        """Wait for the grades, and yield (column in the table of rewards, rollout)."""
        part, grades = self.microbatch, iter(self.grades.result() if self.grades else ())
        for member, row in enumerate(self.result, start=part.first_member):
            for place, (example, made) in enumerate(zip(part.examples, row, strict=True)):
                yield (
                    part.first_example + place,
                    Rollout(member, example.index, made, next(grades))
                    if self.grades
                    else replace(made, member=member),
                )


def evaluate_members(
    engine: Engine,
    graders: GraderProtocol,
    members: Sequence[Perturbation | None],
    examples: Sequence[Example],
    microbatch: MicrobatchSettings,
    decoding: Decoding,
) -> Evaluation:
    """Evaluate every member on every example, microbatch by microbatch, and collect the rewards."""
    started = time.perf_counter()
    generated = [
        part.generated(
            engine.generate(part.members, part.examples, decoding)
            if graders.max_turns is None
            else play_episodes(
                engine, graders, part.members, part.examples, decoding, part.first_member
            ),
            graders,
        )
        for part in cut_microbatches(members, examples, microbatch)
    ]
    generated_s = time.perf_counter() - started
    return gather_rewards(generated, (len(members), len(examples)), generated_s)


def cut_microbatches(
    members: Sequence[Perturbation | None], examples: Sequence[Example], size: MicrobatchSettings
) -> list[Microbatch]:
    """Cut members x examples into microbatches; they do not depend on the engines."""
    together = members_per_microbatch(size, len(examples))
    return [
        Microbatch(i, j, members[i : i + together], examples[j : j + size.examples])
        for i in range(0, len(members), together)
        for j in range(0, len(examples), size.examples)
    ]


def center_microbatch(size: MicrobatchSettings) -> MicrobatchSettings:
    """Return the size of microbatches of the center alone: one member, as many rows in examples."""
    return MicrobatchSettings(
        members=1, examples=members_per_microbatch(size, size.examples) * size.examples
    )


def generation_grid(
    config: Config, population: int, examples: int
) -> tuple[int, int, MicrobatchSettings]:
    """Return the members that generate, the completions of each, and the size of microbatches."""
    method = config.method
    if method.members_generate:
        rows = examples * method.generated_rows(population) // population
        return population, rows, config.microbatch
    return 1, method.generated_rows(population) * examples, center_microbatch(config.microbatch)


def repeat_examples(examples: Sequence[Example], samples: int) -> Sequence[Example]:
    """Return every example as often as it is sampled, the samples of one next to each other."""
    if samples == 1:
        return examples
    return [replace(example, sample=k) for example in examples for k in range(samples)]


def rewards_by_sample(evaluation: Evaluation, samples: int) -> Evaluation:
    """Return an evaluation of one member on repeated examples as `rewards[sample, example]`.

    The samples take the place of the members, in the rollouts too.
    """
    if samples == 1:
        return evaluation
    rollouts = [
        replace(rollout, member=place % samples)
        for place, rollout in enumerate(evaluation.rollouts)
    ]
    rollouts.sort(key=lambda rollout: rollout.member)
    rewards = np.ascontiguousarray(evaluation.rewards.reshape(-1, samples).T)
    return replace(evaluation, rewards=rewards, rollouts=tuple(rollouts))


def members_per_microbatch(microbatch: MicrobatchSettings, examples: int) -> int:
    """Return how many members one microbatch holds, for a batch of so many examples.

    Rows that fit a processor's cache run fastest; a few examples leave room for more members.
    """
    if microbatch.members is not None:
        return microbatch.members
    return max(1, microbatch.rows // min(microbatch.examples, examples))


def gather_rewards(
    generated: Sequence[GeneratedMicrobatch], shape: tuple[int, int], decode_seconds: float
) -> Evaluation:
    """Put microbatches, in any order, into one table of rewards, members x examples."""
    rewards = np.full(shape, np.nan)
    rollouts = []
    for part in sorted(generated, key=lambda part: part.microbatch.place):
        for column, rollout in part.rollouts():
            rewards[rollout.member, column] = rollout.grade.reward
            rollouts.append(rollout)
    rollouts.sort(key=lambda rollout: rollout.member)
    tokens = sum(len(rollout.completion.tokens) for rollout in rollouts)
    return Evaluation(rewards, tuple(rollouts), tokens, decode_seconds)
