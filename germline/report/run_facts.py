"""The facts of a report about one run, read from its run directory alone.

For files that are missing and rows of a generation that is being written, the result is empty.
"""

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from germline.evaluation.behavior import Verdict, flags, recorded_answers, verdict_of
from germline.evaluation.score_difference import PairedDifference, paired_difference
from germline.record import HeldOutRow, HeldOutSample, JournalEntry, RunDirectory
from germline.record.atomic_files import Row
from germline.record.early_stopping import best_score, rank
from germline.record.metrics_rows import paired_samples, transcript
from germline.record.run_paths import folder_to_resume, is_locked, is_seed_study
from germline.report.findings import Finding, find, recorded
from germline.report.text_format import bounded_text, escape_control_characters
from germline.types import GermlineError, HeldOutScore

State = Literal["running", "stopped", "finished"]

LONGEST_NAME = 120
MOST_REASONS = 20


class RunFacts:
    """One run in its present state.

    Attributes:
        done: number of generations in the journal.
        damage: why the journal cannot be read, or what it lacks; None when it is complete.
    """

    def __init__(self, path: Path) -> None:
        run = RunDirectory.open(path)
        self.run = run
        self.path = path
        self.config = run.config
        self.damage: str | None = None
        self.entries: list[JournalEntry] = []
        # Before the journal is read: a run that ends in between must not look stopped.
        self._locked = is_locked(path)
        try:
            run.check_journal()
            self.entries = run.journal.read()
            self.done = len(self.entries)
        except GermlineError as error:
            self.damage = escape_control_characters(str(error))
            self.done = len(run.generations())

    @property
    def name(self) -> str:
        """Name of the folder; one of several run seeds also has that of their folder."""
        path = self.path.resolve()
        seeds = f"{path.parent.name}/" if is_seed_study(path.parent) else ""
        return bounded_text(f"{seeds}{path.name}", LONGEST_NAME)

    @property
    def state(self) -> State:
        """Whether the run is training, has ended, or can be resumed."""
        if self._locked:
            return "running"
        return "finished" if self.has_ended else "stopped"

    @property
    def shown_state(self) -> str:
        """The state, or `stopped early` for a run that a setting ended before `generations`."""
        is_early = self.state == "finished" and self.done < self.config.generations
        return "stopped early" if is_early else self.state

    @property
    def has_ended(self) -> bool:
        """Whether there is nothing left to train, even where a process still holds the run."""
        return self.done >= self.config.generations or self.ending != ""

    @cached_property
    def ending(self) -> str:
        """Why a setting ended the run before its last generation; empty of any other run."""
        ending = None if self.damage else self.run.ending
        return f"{ending.reason} ({ending.setting})" if ending else ""

    @cached_property
    def findings(self) -> list[Finding]:
        """What the numbers of the run mean."""
        return find(recorded(self.run))

    @cached_property
    def rows(self) -> list[Row]:
        """Rows of the generations that were committed."""
        return [row for row in self.run.generations() if row["generation"] < self.done]

    @cached_property
    def held_out(self) -> list[HeldOutRow]:
        """Held-out scores by number of updates."""
        return [one for one in self.run.held_out() if one.score.generation <= self.done]

    @property
    def scores(self) -> list[HeldOutScore]:
        """Held-out scores that could be computed."""
        return [one.score for one in self.held_out if math.isfinite(one.score.mean)]

    @property
    def best(self) -> HeldOutScore | None:
        """The best held-out score; of equal ones the first."""
        return best_score(self.scores)

    @property
    def gain(self) -> PairedDifference | None:
        """The last held-out score less the first one, on the same examples; None before it."""
        if len(self.scores) < 2:
            return None
        return paired_difference(self.scores[-1], self.scores[0])

    @property
    def metric(self) -> str:
        """The metric of the held-out scores."""
        return self.held_out[0].score.metric.replace("_", " ") if self.held_out else "score"

    @property
    def better(self) -> str:
        """Which direction of the metric is better; empty where it is not known."""
        higher = self.scores[0].higher_is_better if self.scores else None
        return "" if higher is None else f"{'higher' if higher else 'lower'} is better"

    @property
    def behavior(self) -> Verdict | None:
        """How held-out answers changed since the start; None where it was not recorded."""
        return verdict_of(self.scores)

    @cached_property
    def answers(self) -> list[tuple[HeldOutSample, HeldOutSample | None, Sequence[str]]]:
        """Held-out samples of the start and the latest ones, with the detectors that flag these."""
        sampled = [one for one in self.held_out if one.samples]
        if not sampled:
            return []
        start, later = sampled[0].samples, sampled[-1].samples if len(sampled) > 1 else ()
        found = flags(recorded_answers(later), recorded_answers(start))
        by_sample = {id(sample): names for sample, names in zip(later, found, strict=True)}
        pairs = paired_samples(start, later)
        return [(before, after, by_sample.get(id(after), ())) for before, after in pairs]

    @cached_property
    def last_rollouts(self) -> list[Row]:
        """Recorded rollouts of the last generation, best first, with their texts."""
        return [
            row | {"text": transcript(row["completion"], row.get("turns", ()), row.get("ended"))}
            for row in self.run.rollouts()
            if row["generation"] == self.done - 1
        ]

    @cached_property
    def times(self) -> dict[str, float]:
        """Seconds of each part of the generations, as `timing` names it, longest first."""
        totals: dict[str, float] = {}
        for row in self.rows:
            for name, seconds in _laps(row).items():
                totals[name] = totals.get(name, 0.0) + seconds
        longest_first = sorted(totals, key=totals.__getitem__, reverse=True)
        return {escape_control_characters(name): totals[name] for name in longest_first}

    @property
    def seconds(self) -> float:
        """Total time of all generations."""
        return sum(self.times.values())

    @property
    def tokens_per_s(self) -> float:
        """Median speed of a generation."""
        known = [row["tokens_per_s"] for row in self.rows if row["tokens_per_s"] is not None]
        return float(np.median(known)) if known else math.nan

    @property
    def peak_memory_mb(self) -> dict[str, float]:
        """Peak memory by place."""
        found: dict[str, float] = {}
        for row in self.rows:
            for place, value in row.get("peak_memory_mb", {}).items():
                found[escape_control_characters(place)] = max(value, found.get(place, 0.0))
        return found

    @cached_property
    def failures(self) -> list[tuple[str, int]]:
        """Reasons why completions earned the floor or have no reward, most frequent first."""
        counts = sum((Counter(row["failures"]) for row in self.rows), Counter[str]())
        return [(bounded_text(reason, 200), n) for reason, n in counts.most_common(MOST_REASONS)]

    def total(self, name: str) -> int:
        """Sum a count, such as `tokens`, over all generations."""
        return sum(row.get(name, 0) for row in self.rows)


def next_commands(run: RunDirectory) -> list[str]:
    """Return the commands that use a run in its present state: export, train on, write its page."""
    # `.` and `..` would not mean the run in another working directory.
    folder = run.path if run.path.name not in ("", "..") else run.path.resolve()
    path = shlex.quote(str(folder))
    commands = []
    if not run.config.engine.has_own_model and run.journal.last_generation() >= 0:
        best = " --generation best" if _is_best_earlier(run) else ""
        commands.append(f"germline export {path}{best} --out my-model")
    if resume := resume_command(run, folder):
        commands.append(resume)
    return [*commands, f"germline report {path}"]


def resume_command(run: RunDirectory, folder: Path | None = None) -> str:
    """Return the command that trains on; empty where a schedule ends with the generations."""
    command = f"germline resume {shlex.quote(str(folder_to_resume(folder or run.path)))}"
    if ending := run.ending:
        return f"{command} {ending.override}"
    if not run.has_ended:
        return command
    whole = run.config.strategy.whole_run
    return "" if whole else f"{command} generations={2 * run.config.generations}"


def _is_best_earlier(run: RunDirectory) -> bool:
    """Whether an earlier generation that was trained scored better than the last one."""
    scores = [row.score for row in run.held_out()]
    best = best_score(scores)
    if best is None or not best.generation:
        return False
    return bool(scores[-1].forgot) or rank(best) > rank(scores[-1])


def _laps(row: Row) -> dict[str, float]:
    """Split the evaluation into generation and waiting for graders; drop parts without time."""
    timing = row["timing"]
    laps = {key: float(value) for key, value in timing.items() if key != "evaluate_s"}
    if "evaluate_s" in timing:
        laps["grading_s"] = max(0.0, timing["evaluate_s"] - laps.get("generate_s", 0.0))
    return {key: seconds for key, seconds in laps.items() if seconds > 0}
