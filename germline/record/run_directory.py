"""The run directory: the folder that holds all files of a training run.

    run.json             resolved config, versions, processor, threads, digest of the base model
    generations.jsonl    one row per generation: fitness, speed, failures
    rollouts.jsonl       a few rollouts per generation, with their texts
    rewards/             with `record.rewards`: a file of each generation, such as 000024.npz, with
                         `rewards` [members, examples] (float64, NaN where missing; samples of the
                         center take the place of members) and the row of each of the `examples`
    held_out.jsonl       every held-out score, with completions at the start and the end
    journal.jsonl        seeds and coefficients: with the base model, the weights of any generation
    ancestors/           journals of the runs that led to the starting weights, if there are any
    snapshots/           masters and moments of some generations, to resume quickly
    tensorboard/         events
    wandb/               files of Weights & Biases, if it tracks the run
    ensemble.json        the members that vote, if the method has some
    evolution.png        the figure
    report.html          the page about the run, once it has ended

The rows of a generation are written first and its journal line last; the journal line commits the
generation. Before a killed run continues, `truncate` drops rows without a journal line.
"""

import io
import json
import platform
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from germline.config import Config, validate_config
from germline.config.loader import FORMAT_VERSION, check_format_version, read_recorded
from germline.record import metrics_rows
from germline.record.atomic_files import (
    Row,
    append_rows,
    complete_lines,
    explain_write_errors,
    keep_rows,
    read_each,
    read_json,
    read_rows,
    write_atomically,
    write_json,
)
from germline.record.early_stopping import (
    Ending,
    Spent,
    early_stop,
    exceeded_drop,
    mark_forgotten,
    reached_limit,
)
from germline.record.journal import Ancestor, Journal, read_ancestry, write_ancestry
from germline.record.run_paths import (
    acquire_lock,
    check_single_run,
    check_unused,
    missing_run_error,
)
from germline.types import Example, GenerationRecord, GermlineError, HeldOutScore, Rollout

FACTS: Mapping[str, type] = {
    "config": dict,
    "base_digest": str,
    "platform": str,
    "processor": str,
    "threads": int,
    "versions": dict,
}
"""Entries of run.json besides the format version, and their types."""


class RunDirectory:
    """One run on disk: its config, and access to the files it wrote.

    `last_row` is the row of the generation that this object wrote last.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any], config: Config) -> None:
        self.path = path
        self._facts = dict(facts)
        self.config = config
        self.journal = Journal(path / "journal.jsonl")
        self.snapshots = path / "snapshots"
        self.tensorboard = path / "tensorboard"
        self.figure = path / "evolution.png"
        self.grader_output = path / "graders.log"
        self.report = path / "report.html"
        self.rewards = path / "rewards"
        self._generations = path / "generations.jsonl"
        self._rollouts = path / "rollouts.jsonl"
        self._held_out = path / "held_out.jsonl"
        self.last_row: Row = {}
        self._claim: weakref.finalize[..., object] | None = None

    @classmethod
    def create(
        cls,
        path: Path,
        config: Config,
        base_digest: str,
        threads: int,
        ancestors: Sequence[Ancestor] = (),
    ) -> "RunDirectory":
        """Begin a run in a new or empty folder.

        Raises:
            GermlineError: the folder is not empty.
        """
        check_unused(path)
        with explain_write_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        facts = {
            "format_version": FORMAT_VERSION,
            "base_digest": base_digest,
            "config": config.model_dump(mode="json"),
            **describe_environment(threads),
        }
        if ancestors:
            facts["ancestry"] = write_ancestry(path, ancestors)
        write_json(path / "run.json", facts)
        run = cls(path, facts, validate_config(facts["config"]))
        run.acquire_lock()
        return run

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """Open a run that was begun earlier.

        Raises:
            GermlineError: this is not a run directory, or another version of germline wrote it that
                this one cannot read; the message names the version that can.
        """
        file = path / "run.json"
        try:
            facts = read_json(file)
        except (FileNotFoundError, NotADirectoryError):
            check_single_run(path)
            raise missing_run_error(path) from None
        except OSError as error:
            raise GermlineError(f"{file} cannot be read: {error.strerror or error}") from None
        check_format_version(file, facts)
        for name, kind in FACTS.items():
            if not isinstance(facts.get(name), kind):
                found = f"has {name!r} of {facts[name]!r}" if name in facts else f"lacks {name!r}"
                raise GermlineError(f"{file} {found}; restore it from a copy")
        try:
            return cls(path, facts, read_recorded(facts["config"]))
        except GermlineError as error:
            raise GermlineError(
                f"{file}: {error}. germline {facts['versions'].get('germline')} wrote this config, "
                f"and this is {installed_version('germline')}: use a version that knows the "
                "setting, restore the file from a copy, or correct the setting"
            ) from None

    @property
    def base_digest(self) -> str:
        """Digest of the masters before any update."""
        return str(self._facts["base_digest"])

    @cached_property
    def ancestors(self) -> tuple[Ancestor, ...]:
        """The runs whose updates led to the starting weights, the first one first.

        Raises:
            GermlineError: the journal of one is missing or damaged.
        """
        return read_ancestry(self.path, self._facts.get("ancestry", ()))

    @property
    def environment(self) -> Mapping[str, Any]:
        """Versions, platform, processor and threads with which the run began."""
        return {key: self._facts[key] for key in ("versions", "platform", "processor", "threads")}

    def update_config(self, config: Config) -> None:
        """Replace the config in run.json, as when a resumed run gets more generations."""
        self._facts["config"] = config.model_dump(mode="json")
        write_json(self.path / "run.json", self._facts)
        self.config = config

    def write(
        self,
        record: GenerationRecord,
        batch: Sequence[Example],
        peak_memory_mb: Mapping[str, float] | None = None,
    ) -> None:
        """Write one generation; the journal line comes last and commits it.

        The peak memory so far, by place (host, device), describes the process that trains.
        """
        self.acquire_lock()
        most = self.config.record.rollouts
        append_rows(self._rollouts, metrics_rows.rollout_rows(record, batch, most))
        if self.config.record.rewards:
            self._write_rewards(record, batch)
        row = metrics_rows.generation_row(record)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        machine = {"written_at": now, "peak_memory_mb": dict(peak_memory_mb or {})}
        append_rows(self._generations, [row | machine])
        if record.held_out is not None:
            append_rows(self._held_out, [metrics_rows.held_out_row(record.held_out)])
        is_missing = np.isnan(record.evaluation.rewards)
        absent = [int(member) for member in np.flatnonzero(is_missing.all(axis=1))]
        self.journal.append(record.update, record.digest, row["missing"], absent)
        self.last_row = row

    def _write_rewards(self, record: GenerationRecord, batch: Sequence[Example]) -> None:
        buffer = io.BytesIO()  # the same bytes whenever the same generation is run
        np.savez_compressed(
            buffer,
            rewards=record.evaluation.rewards.astype(np.float64),
            examples=np.array([example.index for example in batch], dtype=np.int64),
        )
        self.rewards.mkdir(exist_ok=True)
        write_atomically(self.rewards / f"{record.generation:06}.npz", buffer.getvalue())

    def write_held_out(
        self, score: HeldOutScore, completions: Sequence[Rollout], examples: Sequence[Example]
    ) -> None:
        """Write a held-out score with some completions, such as that of the base model."""
        append_rows(self._held_out, [metrics_rows.held_out_row(score, completions, examples)])

    def write_ensemble(self, updates: int, members: Sequence[Row]) -> None:
        """Write the voting members, best first, and the score of each after `updates` updates."""
        facts = {"updates": updates, "members": list(members)}
        write_json(self.path / "ensemble.json", facts)

    def ensemble(self) -> list[Row]:
        """Return the members that vote, best first; empty if the method has none."""
        file = self.path / "ensemble.json"
        return list(read_json(file)["members"]) if file.exists() else []

    def generations(self) -> list[Row]:
        """Return the rows of all generations."""
        return read_rows(self._generations)

    def rollouts(self) -> list[Row]:
        """Return the rows of the rollouts that were kept."""
        return read_rows(self._rollouts)

    def held_out(self) -> list[metrics_rows.HeldOutRow]:
        """Return one held-out score per generation; a score with samples is preferred."""
        rows: dict[int, metrics_rows.HeldOutRow] = {}
        for row in read_each(self._held_out, metrics_rows.read_held_out_row):
            known = rows.get(row.score.generation)
            if known is None or row.samples or not known.samples:
                rows[row.score.generation] = row
        found = [rows[generation] for generation in sorted(rows)]
        scores = mark_forgotten([row.score for row in found], self.config.max_drops)
        return [replace(row, score=score) for row, score in zip(found, scores, strict=True)]

    @property
    def spent(self) -> Spent:
        """What all generations so far have spent."""
        last = self.journal.last_generation()
        rows = [row for row in self.generations() if row["generation"] <= last]
        return rows[-1]["budget"] if rows else {}

    @property
    def ending(self) -> Ending | None:
        """Why a setting ended the run before its last generation; None of any other run."""
        has_more = self.journal.last_generation() + 1 < self.config.generations
        return self.ended_by(self.config) if has_more else None

    @property
    def stopped_by(self) -> str | None:
        """The setting that ended the run before its last generation; None of any other run."""
        ending = self.ending
        return ending.setting if ending else None

    def ended_by(self, config: Config) -> Ending | None:
        """Return why a run ends that has this config and is as far as this one."""
        patience = config.held_out.patience
        is_asked = config.max_drops or patience is not None
        scores = [row.score for row in self.held_out()] if is_asked else []
        return (
            exceeded_drop(scores, config.max_drops)
            or early_stop(scores, patience)
            or reached_limit(config.budget, self.spent if config.budget.limits else {})
        )

    @property
    def has_ended(self) -> bool:
        """Whether all generations are done, or a setting ended the run earlier."""
        done = self.journal.last_generation() + 1
        return done >= self.config.generations or self.ending is not None

    def truncate(self, generation: int) -> None:
        """Drop rows of generations after this one (-1 drops all), and incomplete last lines.

        A process that is killed between the rows of a generation and its journal line leaves rows
        of a generation that is not committed. The journal is not changed: appending to it removes
        its own incomplete line. Of a score with and without completions, the latter is kept, as
        before the run ended there.
        """
        self.acquire_lock()
        for path in (self._generations, self._rollouts):
            keep_rows(path, lambda row: row["generation"] <= generation)
        # A held-out score counts updates: the weights after generation g had g + 1 updates.
        scored: set[int] = set()

        def is_kept(row: Row) -> bool:
            is_new = row["generation"] not in scored
            scored.add(row["generation"])
            return is_new and bool(row["generation"] <= generation + 1)

        keep_rows(self._held_out, is_kept)
        for file in self.rewards.glob("*.npz"):
            if file.stem.isdecimal() and int(file.stem) > generation:
                file.unlink()

    def acquire_lock(self) -> None:
        """Lock the folder for this process until it ends or `release_lock` is called.

        Raises:
            GermlineError: another process trains in this folder.
        """
        if self._claim is not None and self._claim.alive:
            return
        self._claim = acquire_lock(self.path, self)

    def release_lock(self) -> None:
        """Release the lock, if this object holds it."""
        if self._claim is not None:
            self._claim()

    @property
    def lost_generations(self) -> range:
        """The committed generations that have no line in the journal.

        Rows are written before the journal line that commits them, so a killed process leaves at
        most one generation with rows and without a line. More of them mean that lines were deleted
        afterwards: the journal rebuilds older weights.
        """
        recorded = -1
        # Read before the journal: a training process may append to both files.
        for line in reversed(complete_lines(self._generations)):
            with suppress(ValueError, KeyError, TypeError):  # a damaged row
                recorded = int(json.loads(line)["generation"])
                break
        last = self.journal.last_generation()
        return range(last + 1, recorded + 1) if recorded > last + 1 else range(0)

    def check_journal(self) -> None:
        """Raise an error if the journal lacks lines of generations that were committed."""
        if lost := self.lost_generations:
            before = lost.start - 1
            raise GermlineError(
                f"{self.journal.path}: the journal lines of generations {lost.start} to {lost[-1]} "
                "are missing, so the newest weights cannot be rebuilt. Restore the journal from a "
                f"copy, train those generations again (germline resume {self.path}), or use the "
                f"weights after generation {before} (germline export {self.path} --generation "
                f"{before})"
            )


def describe_environment(threads: int) -> dict[str, Any]:
    """Return the versions and hardware that can change the last bits of an evaluation."""
    packages = ("germline", "torch", "transformers", "numpy")
    return {
        "versions": {"python": platform.python_version()}
        | {package: installed_version(package) for package in packages},
        "platform": platform.platform(),
        "processor": _processor(),
        "threads": threads,
    }


def installed_version(package: str) -> str | None:
    """Read a version from the installed metadata, as importing torch would take seconds."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
