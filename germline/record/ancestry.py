"""The ancestors of a forked run: the runs whose updates led to its starting weights.

A forked run starts from the weights of another run after one of its generations. The weights are
not copied. Instead, run.json holds the config and the digests before and after of every ancestor,
from the first to the parent, and `ancestors/<n>.jsonl` holds its journal up to that generation.
With the base model, these rebuild the starting weights, so the parent's directory is not needed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from germline.config import Config
from germline.config.loader import read_recorded
from germline.record.atomic_files import explain_write_errors
from germline.record.journal import Journal, JournalEntry, write_journal
from germline.signal_metrics import walked
from germline.types import GermlineError

FOLDER = "ancestors"
"""Folder of the ancestors' journals in a run directory."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """An earlier run, up to the `generation` that the next run was forked from; -1 is its start."""

    path: str
    generation: int
    base_digest: str
    config: Config
    entries: tuple[JournalEntry, ...]

    @property
    def digest(self) -> str:
        """Digest of its masters, moments and factors of sigma after `generation`."""
        return self.entries[-1].digest if self.entries else self.base_digest


def inherited_walk(ancestors: Sequence[Ancestor], unit: str) -> float:
    """Return the distance that the updates of the ancestors moved the starting weights.

    Ancestors with another unit of sigma are not counted.
    """
    distance = 0.0
    for ancestor in ancestors:
        if ancestor.config.search.unit == unit and ancestor.entries:
            updates = [entry.update for entry in ancestor.entries]
            last = walked(updates, ancestor.config.optimizer, distance)[-1]
            distance = distance if last is None else last
    return distance


def write_ancestry(folder: Path, ancestors: Sequence[Ancestor]) -> list[dict[str, Any]]:
    """Write the ancestors' journals into a run directory; return their entry of run.json."""
    facts = []
    for place, ancestor in enumerate(ancestors):
        file = _journal(folder, place)
        with explain_write_errors(file):
            file.parent.mkdir(exist_ok=True)
        write_journal(file, ancestor.entries)
        facts.append(
            {
                "path": ancestor.path,
                "generation": ancestor.generation,
                "digest": ancestor.digest,
                "base_digest": ancestor.base_digest,
                "config": ancestor.config.model_dump(mode="json"),
            }
        )
    return facts


def read_ancestry(folder: Path, facts: Sequence[Mapping[str, Any]]) -> tuple[Ancestor, ...]:
    """Read the ancestors of a run, the first one first; empty if the run was not forked."""
    ancestors = []
    for place, fact in enumerate(facts):
        file = _journal(folder, place)
        ancestor = Ancestor(
            path=str(fact["path"]),
            generation=int(fact["generation"]),
            base_digest=str(fact["base_digest"]),
            config=read_recorded(fact["config"]),
            entries=tuple(Journal(file).read()),
        )
        if len(ancestor.entries) != ancestor.generation + 1 or ancestor.digest != fact["digest"]:
            raise GermlineError(
                f"{file} is not the journal that run.json names: it has {len(ancestor.entries)} "
                f"generations, and run.json says {ancestor.generation + 1}; restore both from a "
                "copy"
            )
        ancestors.append(ancestor)
    return tuple(ancestors)


def _journal(folder: Path, place: int) -> Path:
    return folder / FOLDER / f"{place}.jsonl"
