"""A fleet around another, to change how something is played: everything else is passed on."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from germline.comm_bytes import CommBytes
from germline.protocols import Fleet, Members, Texts
from germline.record import JournalEntry
from germline.signal_types import UpdateSize
from germline.types import (
    Decoding,
    Evaluation,
    Example,
    MeanUpdate,
    Population,
    Update,
)


class FleetWrapper:
    """Passes everything on to the fleet inside; subclasses say what is done otherwise."""

    def __init__(self, inner: Fleet) -> None:
        self.inner = inner

    def evaluate(
        self, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Play the batch with every member and grade it."""
        return self.inner.evaluate(population, batch, decoding)

    def evaluate_center(self, examples: Sequence[Example], decoding: Decoding) -> Evaluation:
        """Play the examples with the center and grade them."""
        return self.inner.evaluate_center(examples, decoding)

    def log_probabilities(
        self, members: Members, examples: Sequence[Example], completions: Texts
    ) -> list[list[Sequence[float]]]:
        """Let members read completions."""
        return self.inner.log_probabilities(members, examples, completions)

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Apply the update on every engine, and return what one of them measured of it."""
        return self.inner.apply(update)

    def scales(self) -> Mapping[str, float]:
        """Return by how much each searched tensor's sigma differs from that of its members."""
        return self.inner.scales()

    def dimension(self) -> int:
        """Return how many numbers are searched."""
        return self.inner.dimension()

    def digest(self) -> str:
        """Return the digest all engines agree on."""
        return self.inner.digest()

    def save_snapshot(self, folder: Path, generation: int, keep: int) -> None:
        """Write masters and moments as they are after `generation`."""
        self.inner.save_snapshot(folder, generation, keep)

    def restore(
        self, entries: Sequence[JournalEntry], folder: Path | None, base_digest: str
    ) -> None:
        """Bring the base weights to the state after the last entry of a journal."""
        self.inner.restore(entries, folder, base_digest)

    def traffic(self) -> CommBytes | None:
        """Return what traveled since this was last asked."""
        return self.inner.traffic()

    def close(self) -> None:
        """End whatever runs elsewhere."""
        self.inner.close()
