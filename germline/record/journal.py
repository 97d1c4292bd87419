"""The journal: one line per generation, from which any generation is rebuilt bit for bit.

A line holds the fields of an update that `apply` needs (run seed, generation, sigma, learning rate,
coefficients), the digest the masters must have afterwards, the version of the noise, and a checksum
of the line. For a strategy of coordinates it holds the utilities instead: the strategy computes the
same step from them again. All other keys of a line are the strategy's state: the journal returns
them and does not know what they mean.

Floats are written so that they read back to the same bits. Lines hold no time and no machine: the
same config and seed give the same bytes.

Appending is the commit of a generation: one write, then fsync. A killed process leaves at most a
last line without its newline, which counts as never written. Any other damage is an error, because
a replay from a damaged line would give wrong weights.

A forked run starts from the weights of another run after one of its generations. The weights are
not copied. Instead, run.json holds the config and the digests before and after of every ancestor,
from the first to the parent, and `ancestors/<n>.jsonl` holds its journal up to that generation.
With the base model, these rebuild the starting weights, so the parent's directory is not needed.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from germline.config import Config
from germline.config.loader import read_recorded
from germline.noise import NOISE_VERSION
from germline.record.atomic_files import (
    append_durably,
    complete_lines,
    explain_write_errors,
    sync_folder,
    write_atomically,
)
from germline.signal_metrics import walked
from germline.types import GermlineError, MeanUpdate, SigmaUpdate, Update

UPDATE_KEYS = frozenset(
    {
        *("generation", "sigma", "utilities", "run_seed", "learning_rate", "coefficients"),
        *("skipped", "backpropagated", "decay"),
    }
)
"""Keys of a line that are fields of its update, by their names."""

JOURNAL_KEYS = UPDATE_KEYS | {
    *("digest", "noise_version", "checksum", "missing", "absent", "stretch")
}
"""Keys of a line that the journal reads; all other keys are the strategy's state."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One generation: its update, the digest after it, and how many rollouts had no reward.

    `absent` members had none at all, such as those of engines that a quorum did not wait for.
    """

    update: Update | MeanUpdate
    digest: str
    missing: int = 0
    absent: tuple[int, ...] = ()


class Journal:
    """The append-only list of updates of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The generation that may be appended; None until the file was read.
        self._next: int | None = None

    def append(
        self, update: Update | MeanUpdate, digest: str, missing: int = 0, absent: Sequence[int] = ()
    ) -> None:
        """Commit one generation.

        Raises:
            GermlineError: it does not follow the last generation, or a number is not finite.
        """
        if self._next is None:
            self._next = self.last_generation() + 1
            self._cut_torn_line()
        if update.generation != self._next:
            raise GermlineError(
                f"{self.path}: generation {update.generation} cannot follow generation "
                f"{self._next - 1}; continue the run with `germline resume`, which starts at "
                "the right one"
            )
        line = _encode(JournalEntry(update, digest, missing, tuple(absent)))
        append_durably(self.path, line, sync=True)
        if self._next == 0:
            sync_folder(self.path.parent)
        self._next += 1

    def read(self, generations: int | None = None) -> list[JournalEntry]:
        """Read the first generations, or all of them, in order, leaving out a torn last line.

        Lines of later generations are not checked, so damage there does not matter.

        Raises:
            GermlineError: a line is damaged, missing or out of order, or of another noise version.
        """
        entries = []
        for number, line in enumerate(complete_lines(self.path)[:generations], 1):
            entry = self._decode(number, line)
            expected = number - 1
            if entry.update.generation != expected:
                raise self._damage(
                    number, f"found generation {entry.update.generation} in place of {expected}"
                )
            entries.append(entry)
        return entries

    def cut(self, generations: int) -> None:
        """Drop all but the first so many generations, in one atomic step."""
        lines = complete_lines(self.path)
        if len(lines) > generations:
            write_atomically(self.path, b"".join(line + b"\n" for line in lines[:generations]))
        self._next = None

    def last_generation(self) -> int:
        """Return the last generation that was committed, -1 before the first."""
        return len(self.read()) - 1

    def _cut_torn_line(self) -> None:
        if self.path.exists():
            whole = sum(len(line) + 1 for line in complete_lines(self.path))
            os.truncate(self.path, whole)

    def _decode(self, number: int, line: bytes) -> JournalEntry:
        try:
            values = json.loads(line)
            version = values["noise_version"]
            if _sealed(values) != line + b"\n":
                raise self._damage(number, "the checksum does not match")
            if version != NOISE_VERSION:
                raise GermlineError(
                    f"{self.path}, line {number}: noise version {version} is not known, "
                    f"this germline draws version {NOISE_VERSION}; use the germline version "
                    "named in run.json"
                )
            return _entry(values)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._damage(
                number, f"it is no journal entry but {line[:40].decode('utf-8', 'replace')!r}"
            ) from None

    def _damage(self, number: int, what: str) -> GermlineError:
        return GermlineError(
            f"{self.path}, line {number}: {what}, so generations from {number - 1} on cannot be "
            "rebuilt from it; restore the file from a copy, or cut it before this line and "
            "`germline resume` the run from there"
        )


def write_journal(path: Path, entries: Sequence[JournalEntry]) -> None:
    """Write entries as a journal of their own: the bytes that `append` would have written."""
    write_atomically(path, b"".join(map(_encode, entries)))


def _entry(values: dict[str, Any]) -> JournalEntry:
    """Read a line; the names of `stretch` are those that journals have held from the beginning."""
    state = {name: value for name, value in values.items() if name not in JOURNAL_KEYS}
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name in UPDATE_KEYS
    }
    update: Update | MeanUpdate
    if "utilities" in values:
        update = MeanUpdate(**fields, strategy_state=state)
    else:
        stretch = values.get("stretch")
        sizes = stretch and SigmaUpdate(
            tuple(stretch["coefficients"]), stretch["least"], stretch["most"]
        )
        update = Update(**fields, sigma_update=sizes, strategy_state=state)
    missing, absent = values.get("missing", 0), tuple(values.get("absent", ()))
    return JournalEntry(update, values["digest"], missing, absent)


def _encode(entry: JournalEntry) -> bytes:
    """Write a line; fields at their default are left out."""
    update = entry.update
    state = update.strategy_state
    _check_state(state, update.generation)
    values: dict[str, Any] = {
        "digest": entry.digest,
        "generation": int(update.generation),
        "noise_version": NOISE_VERSION,
        "sigma": float(update.sigma),
        "missing": int(entry.missing) or None,
        "absent": [int(member) for member in entry.absent] or None,
    }
    if isinstance(update, MeanUpdate):
        values["utilities"] = [float(utility) for utility in update.utilities]
    else:
        sizes = update.sigma_update
        values |= {
            "coefficients": [float(coefficient) for coefficient in update.coefficients],
            "learning_rate": float(update.learning_rate),
            "run_seed": int(update.run_seed),
            "stretch": sizes
            and {"coefficients": sizes.coefficients, "least": sizes.min, "most": sizes.max},
            "skipped": update.skipped or None,
            "backpropagated": update.backpropagated or None,
            "decay": float(update.decay) or None,
        }
    values = {name: value for name, value in values.items() if value is not None}
    values |= state
    try:
        return _sealed(values)
    except ValueError:
        raise GermlineError(
            f"generation {update.generation}: the update holds a number that is not finite; check "
            "the task's rewards for overflow"
        ) from None


def _check_state(state: Mapping[str, Any], generation: int) -> None:
    """Refuse a strategy state that a journal cannot return unchanged."""
    for name, value in state.items():
        if name in JOURNAL_KEYS:
            raise GermlineError(
                f"generation {generation}: the strategy state has a value named {name!r}, which is "
                "a field of the journal: give it another name"
            )
        try:
            same = json.loads(json.dumps(value)) == value
        except TypeError:
            same = False
        if not same:
            raise GermlineError(
                f"generation {generation}: {name}={value!r} of the strategy state does not read "
                "back from JSON as it is: use lists, text as keys, None and Python's numbers"
            )


def _sealed(values: dict[str, Any]) -> bytes:
    """Return the one line that these values make, with its checksum computed anew."""
    rest = {key: value for key, value in values.items() if key != "checksum"}
    checksum = hashlib.sha256(_canonical(rest)).hexdigest()[:16]
    return _canonical(rest | {"checksum": checksum}) + b"\n"


def _canonical(values: dict[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


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
        file = _ancestor_file(folder, place)
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
        file = _ancestor_file(folder, place)
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


def _ancestor_file(folder: Path, place: int) -> Path:
    return folder / "ancestors" / f"{place}.jsonl"
