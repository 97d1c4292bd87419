"""What every fleet does, and the smallest one: one engine in this process and its graders."""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from germline.checkpoint import restore, save_snapshot
from germline.config import MicrobatchSettings
from germline.fleet.worker_jobs import EngineJob, LogProbabilitiesQuery
from germline.protocols import Answer, Engine, EngineQuery, GraderProtocol, Members, ScoringGroup
from germline.record import JournalEntry
from germline.rollout import (
    center_microbatch,
    cut_microbatches,
    evaluate_members,
    repeat_examples,
    rewards_by_sample,
)
from germline.types import Completion, Decoding, Evaluation, Example, MeanUpdate, Population, Update

Key = TypeVar("Key")

Place = tuple[int, int]
"""First member and first example of a microbatch."""


class Fleet(ABC):
    """Engines with equal weights, which apply the same updates; it counts what they do.

    Attributes:
        counts: what the engines did so far; a caller may clear it. `rollouts` are completions or
            episodes, `tokens` those that were generated, and `forward_tokens` those that a model
            read or generated. For each text that it writes or scores, a member counts the whole
            prompt, even where an engine reads the beginning of several rows once. An episode counts
            each token of its conversation once, those of the environment too.
        shared: reads an evaluation that another run has made, or makes it; given what makes it and
            what it depends on. None: all are made here.
    """

    shared: Callable[[Callable[[], Evaluation], object], Evaluation] | None = None

    def __init__(self, graders: GraderProtocol, microbatch: MicrobatchSettings) -> None:
        self.graders = graders
        self.microbatch = microbatch
        self.counts: Counter[str] = Counter()

    def evaluate(
        self, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Evaluate every member on the batch, or a quorum of them if that is enough."""
        paired = 2 if population.antithetic else 1
        paired = 0 if population.needs_every_member else paired
        members, own = population.members, self.graders

        def made() -> Evaluation:
            return self._evaluate_members(members, batch, self.microbatch, decoding, own, paired)

        return self._counted(made, (population, batch, decoding))

    def evaluate_center(
        self,
        examples: Sequence[Example],
        decoding: Decoding,
        samples: int = 1,
        graders: GraderProtocol | None = None,
    ) -> Evaluation:
        """Evaluate the unperturbed weights: `rewards[samples, examples]`.

        Every sample of an example has sampling noise of its own. `graders` are those of another
        task; None: those of the fleet. A microbatch of one member has as many rows in examples.
        """
        repeated = repeat_examples(examples, samples)
        microbatch, own = center_microbatch(self.microbatch), graders or self.graders

        def made() -> Evaluation:
            found = self._evaluate_members([None], repeated, microbatch, decoding, own, 0)
            return rewards_by_sample(found, samples)

        return self._counted(made, None if graders else (examples, decoding, samples))

    def score(self, groups: Sequence[ScoringGroup]) -> list[list[Sequence[float]]]:
        """Return the log-probabilities of the tokens that each group's members read.

        They are at temperature 1, `[members of all groups][completions][tokens]`.
        """
        for group in groups:
            self.counts["forward_tokens"] += len(group.members) * _length(group.completions)
        jobs = scoring_jobs(groups, self.microbatch)
        results, rows = self._results(jobs), defaultdict[int, list[Sequence[float]]](list)
        for place in jobs:
            for member, row in enumerate(results[place], start=place[0]):
                rows[member] += row
        return [*rows.values()]

    def query(self, query: EngineQuery[Answer]) -> Answer:
        """Return one engine's answer to a read-only question: all have the same weights."""
        if isinstance(query, LogProbabilitiesQuery):
            self.counts["forward_tokens"] += sum(map(_length, query.completions))
        answer: Answer = self._results({0: query})[0]
        return answer

    def _counted(self, make: Callable[[], Evaluation], asked: object) -> Evaluation:
        evaluation = self.shared(make, asked) if self.shared and asked else make()
        read = sum(one.completion.prompt_tokens for one in evaluation.rollouts)
        self.counts["rollouts"] += len(evaluation.rollouts)
        self.counts["tokens"] += evaluation.tokens
        self.counts["forward_tokens"] += read + evaluation.tokens
        return evaluation

    @abstractmethod
    def apply(self, update: Update | MeanUpdate) -> None:
        """Apply the update on every engine."""

    @abstractmethod
    def digest(self) -> str:
        """Return the digest of the masters, on which all engines agree."""

    @abstractmethod
    def save_snapshot(self, folder: Path, generation: int) -> None:
        """Write masters and moments, as they are after `generation`."""

    @abstractmethod
    def restore(
        self, entries: Sequence[JournalEntry], folder: Path | None, base_digest: str
    ) -> None:
        """Bring the base weights to the state after the last entry of a journal.

        A snapshot in the folder shortens the replay. The result is verified by its digest.
        """

    @abstractmethod
    def close(self) -> None:
        """End the processes and connections of the engines."""

    @abstractmethod
    def _evaluate_members(
        self,
        members: Members,
        examples: Sequence[Example],
        microbatch: MicrobatchSettings,
        decoding: Decoding,
        graders: GraderProtocol,
        paired: int,
    ) -> Evaluation:
        """Evaluate all members, or a quorum of them in groups of `paired` (0: all)."""

    @abstractmethod
    def _results(self, jobs: Mapping[Key, EngineJob]) -> dict[Key, Any]:
        """Return the results of read-only jobs, which any engine can do."""


class LocalFleet(Fleet):
    """One engine in this process and its graders."""

    def __init__(
        self, engine: Engine, graders: GraderProtocol, microbatch: MicrobatchSettings
    ) -> None:
        super().__init__(graders, microbatch)
        self.engine = engine

    def _evaluate_members(
        self,
        members: Members,
        examples: Sequence[Example],
        microbatch: MicrobatchSettings,
        decoding: Decoding,
        graders: GraderProtocol,
        paired: int,
    ) -> Evaluation:
        return evaluate_members(self.engine, graders, members, examples, microbatch, decoding)

    def _results(self, jobs: Mapping[Key, EngineJob]) -> dict[Key, Any]:
        return {key: job(self.engine) for key, job in jobs.items()}

    def apply(self, update: Update | MeanUpdate) -> None:
        """Apply the update."""
        self.engine.apply(update)

    def digest(self) -> str:
        """Return the digest of the masters."""
        return self.engine.weights.digest()

    def save_snapshot(self, folder: Path, generation: int) -> None:
        """Write masters and moments, as they are after `generation`."""
        save_snapshot(self.engine.weights, folder, generation)

    def restore(
        self, entries: Sequence[JournalEntry], folder: Path | None, base_digest: str
    ) -> None:
        """Bring the base weights to the state after the last entry."""
        restore(self.engine.weights, entries, folder, base_digest, len(entries) - 1)
        self.engine.refresh()

    def close(self) -> None:
        """Stop what the engine started."""
        self.engine.close()


def scoring_jobs(
    groups: Sequence[ScoringGroup], microbatch: MicrobatchSettings
) -> dict[Place, LogProbabilitiesQuery]:
    """Cut the members x completions of every group into queries, by first member and completion.

    Members are counted over all groups.
    """
    jobs = {}
    before = 0
    for group in groups:
        examples = [without_answer(example) for example in group.examples]
        for part in cut_microbatches(group.members, examples, microbatch):
            first = part.first_example
            written = group.completions[first : first + len(part.examples)]
            jobs[before + part.first_member, first] = LogProbabilitiesQuery(
                part.members, part.examples, [written] * len(part.members)
            )
        before += len(group.members)
    return jobs


def without_answer(example: Example) -> Example:
    """Leave out what only graders need."""
    return replace(example, answer="", facts={})


def _length(completions: Iterable[Completion]) -> int:
    return sum(one.length for one in completions)
