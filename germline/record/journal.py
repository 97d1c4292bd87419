"""The journal: one line per generation, from which any generation is rebuilt bit for bit.

A line holds what `apply` needs (run seed, generation, sigma, learning rate, coefficients), the
digest the masters must have afterwards, the version of the noise, and a checksum of all that; where
the strategy goes by it, the mean fitness too, or what else it needs to be recalled. Of a strategy
of coordinates it holds the utilities it was told, sigma and the digest: telling it again says the
rest.
Floats are written so that they read back to the same bits. Nothing of time or machine is in it: the
same config and seed give the same bytes.

Appending is the commit of a generation: one write, then fsync. A killed process leaves at most a
last line without its newline, which counts as never written. Any other damage is an error, because
a replay would silently go astray.
"""

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from germline.noise import NOISE_VERSION
from germline.record.atomic_files import (
    append_durably,
    complete_lines,
    sync_folder,
    write_atomically,
)
from germline.signal_types import SignalPower
from germline.types import GermlineError, MeanUpdate, SigmaUpdate, Update


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One generation of the journal.

    Attributes:
        digest: of masters and moments after the update.
        missing: rollouts without a reward behind the coefficients.
        absent: members without any reward, such as those a generation closed without.
    """

    update: Update | MeanUpdate
    digest: str
    noise_version: int
    missing: int = 0
    absent: tuple[int, ...] = ()


class Journal:
    """The append-only list of updates of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._next: int | None = (
            None  # the generation that may be appended; None until the file was read
        )

    def append(
        self,
        update: Update | MeanUpdate,
        digest: str,
        noise_version: int,
        missing: int = 0,
        absent: Sequence[int] = (),
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
        line = _encode(JournalEntry(update, digest, noise_version, missing, tuple(absent)))
        append_durably(self.path, line, sync=True)
        if self._next == 0:
            sync_folder(self.path.parent)
        self._next += 1

    def read(self) -> list[JournalEntry]:
        """Read all generations, in order, leaving out a torn last line.

        Raises:
            GermlineError: a line is damaged, missing or out of order, or of another noise version.
        """
        entries = []
        for number, line in enumerate(complete_lines(self.path), 1):
            entry = self._decode(number, line)
            expected = number - 1
            if entry.update.generation != expected:
                raise self._damage(
                    number, f"generation {entry.update.generation} stands where {expected} should"
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
            raise self._damage(number, f"found {line[:40]!r}, no journal entry") from None

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
    update = _move(values) if "utilities" in values else _update(values)
    absent = tuple(values.get("absent", ()))
    missing = values.get("missing", 0)
    return JournalEntry(update, values["digest"], values["noise_version"], missing, absent)


def _move(values: dict[str, Any]) -> MeanUpdate:
    return MeanUpdate(values["generation"], values["sigma"], tuple(values["utilities"]))


def _update(values: dict[str, Any]) -> Update:
    return Update(
        run_seed=values["run_seed"],
        generation=values["generation"],
        sigma=values["sigma"],
        learning_rate=values["learning_rate"],
        coefficients=tuple(values["coefficients"]),
        fitness=values.get("fitness"),
        fitnesses=tuple(math.nan if one is None else one for one in values.get("told", ())),
        success_rate=values.get("success"),
        noise_generation=values.get("noise_generation"),
        sigma_update=_sigma_update(values["stretch"]) if "stretch" in values else None,
        skipped=values.get("skipped", False),
        option_probabilities=tuple(tuple(one) for one in values.get("choices", ())),
        backpropagated=values.get("backpropagated", False),
        signal_power=SignalPower(**values["power"]) if "power" in values else None,
    )


def _encode(entry: JournalEntry) -> bytes:
    update = entry.update
    told = _moved(update) if isinstance(update, MeanUpdate) else _updated(update)
    values: dict[str, Any] = {
        **told,
        "digest": entry.digest,
        "generation": int(update.generation),
        "noise_version": int(entry.noise_version),
        "sigma": float(update.sigma),
    }
    # Only where it says something, so that journals without it keep their bytes.
    if entry.missing:
        values["missing"] = int(entry.missing)
    if entry.absent:
        values["absent"] = [int(one) for one in entry.absent]
    return _sealed(values)


def _moved(move: MeanUpdate) -> dict[str, Any]:
    """Say what a coordinate strategy was told: where that led follows from it."""
    utilities = [float(one) for one in move.utilities]
    if not all(map(math.isfinite, (move.sigma, *utilities))):
        raise GermlineError(
            f"generation {move.generation}: the move holds a number that is not finite "
            f"(sigma {move.sigma}, utilities {utilities}); check the task's rewards for overflow"
        )
    return {"utilities": utilities}


def _updated(update: Update) -> dict[str, Any]:
    """Say what a seeded strategy made of what it was told."""
    coefficients = [float(one) for one in update.coefficients]
    power = update.signal_power or SignalPower(0.0, 0.0)
    numbers = (
        *(update.sigma, update.learning_rate, update.fitness or 0.0, power.total, power.noise),
        *coefficients,
    )
    if not all(map(math.isfinite, numbers)):
        raise GermlineError(
            f"generation {update.generation}: the update holds a number that is not finite "
            f"(sigma {update.sigma}, learning_rate {update.learning_rate}, "
            f"fitness {update.fitness}, coefficients {coefficients}); check the task's rewards "
            "for overflow"
        )
    values: dict[str, Any] = {
        "coefficients": coefficients,
        "learning_rate": float(update.learning_rate),
        "run_seed": int(update.run_seed),
    }
    # Only what says something, so that journals without it keep their bytes.
    return values | {name: value for name, value in _rest(update).items() if value is not None}


def _rest(update: Update) -> dict[str, Any]:
    """Return what only some updates hold; None where this one does not."""
    return {
        "fitness": None if update.fitness is None else float(update.fitness),
        "success": None if update.success_rate is None else float(update.success_rate),
        "noise_generation": (
            None if update.noise_generation is None else int(update.noise_generation)
        ),
        "stretch": _encoded_sigma_update(update.sigma_update) if update.sigma_update else None,
        "skipped": update.skipped or None,
        "told": [None if math.isnan(one) else float(one) for one in update.fitnesses] or None,
        "choices": [
            [float(one) for one in probabilities] for probabilities in update.option_probabilities
        ]
        or None,
        "backpropagated": update.backpropagated or None,
        "power": asdict(update.signal_power) if update.signal_power else None,
    }


def _encoded_sigma_update(update: SigmaUpdate) -> dict[str, Any]:
    """Write it under the names that journals have held from the beginning."""
    return {"coefficients": update.coefficients, "least": update.min, "most": update.max}


def _sigma_update(values: dict[str, Any]) -> SigmaUpdate:
    return SigmaUpdate(tuple(values["coefficients"]), values["least"], values["most"])


def _sealed(values: dict[str, Any]) -> bytes:
    """Return the one line that may stand for these values, its checksum made anew."""
    rest = {key: value for key, value in values.items() if key != "checksum"}
    checksum = hashlib.sha256(_canonical(rest)).hexdigest()[:16]
    return _canonical(rest | {"checksum": checksum}) + b"\n"


def _canonical(values: dict[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
