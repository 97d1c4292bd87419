"""One engine in this process and its graders: the smallest fleet."""

from collections.abc import Sequence
from pathlib import Path

from germline.checkpoint import restore, save_snapshot
from germline.config import MicrobatchSettings
from germline.fleet.engine_queries import joined_scores, scoring_jobs
from germline.protocols import Answer, Engine, EngineQuery, GraderProtocol, ScoringGroup
from germline.record import JournalEntry
from germline.rollout import center_microbatch, evaluate_members, repeat_examples, rewards_by_sample
from germline.types import Decoding, Evaluation, Example, MeanUpdate, Population, Update, UpdateSize


class LocalFleet:
    """One engine in this process and its graders."""

    def __init__(
        self, engine: Engine, graders: GraderProtocol, microbatch: MicrobatchSettings
    ) -> None:
        self.engine = engine
        self.graders = graders
        self.microbatch = microbatch

    def evaluate(
        self, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Evaluate every member on the batch."""
        return evaluate_members(
            self.engine, self.graders, population.members, batch, self.microbatch, decoding
        )

    def evaluate_center(
        self,
        examples: Sequence[Example],
        decoding: Decoding,
        samples: int = 1,
        graders: GraderProtocol | None = None,
    ) -> Evaluation:
        """Evaluate the center alone: one member, so a microbatch holds as many rows in examples."""
        repeated = repeat_examples(examples, samples)
        microbatch = center_microbatch(self.microbatch)
        evaluation = evaluate_members(
            self.engine, graders or self.graders, [None], repeated, microbatch, decoding
        )
        return rewards_by_sample(evaluation, samples)

    def score(self, groups: Sequence[ScoringGroup]) -> list[list[Sequence[float]]]:
        """Return the log-probabilities of every group's completions, microbatch by microbatch."""
        jobs = scoring_jobs(groups, self.microbatch)
        return joined_scores({place: job(self.engine) for place, job in jobs.items()})

    def query(self, query: EngineQuery[Answer]) -> Answer:
        """Return the engine's answer to a read-only question."""
        return query(self.engine)

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Apply the update, and return the size of the step."""
        return self.engine.apply(update)

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
