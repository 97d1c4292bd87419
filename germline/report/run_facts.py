"""The facts of a report about one run, read from its run directory alone.

Model text is shortened and made visible here, so that templates can insert it as it is. For files
that are missing, rows of a generation that is being written, and fields that older runs lack, the
result is empty and never a guess.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from germline.config import Config
from germline.random_walk import walked
from germline.record import HeldOutRow, HeldOutSample, JournalEntry, RunDirectory
from germline.record.ancestry import Ancestor, inherited_walk
from germline.record.atomic_files import Row
from germline.record.best_generation import best_score
from germline.record.journal_check import check_journal
from germline.record.list_runs import State
from germline.record.lock import is_locked
from germline.record.metrics_rows import batch_examples, paired_samples, transcript
from germline.record.seed_study import is_seed_study
from germline.registry import implementation
from germline.report import diff
from germline.report.advice import compares_members, failed_share, without_update
from germline.report.diff import DiffPiece
from germline.report.score_decline_advice import ScoreDeclineAdvice, score_decline_advice
from germline.report.text_format import counted_by, escape_control_characters, scored_as
from germline.types import GermlineError, HeldOutScore

LONGEST_TEXT = 1200
"""Characters shown of a prompt or a completion."""

LONGEST_NAME = 120
MOST_REASONS = 20

PARTS = {
    "calibrate_s": "calibrating sigma",
    "ask_s": "choosing examples and members (ask)",
    "generate_s": "generating",
    "grading_s": "waiting for graders",
    "tell_s": "computing the update (tell)",
    "signals_s": "measuring the signal",
    "apply_s": "updating the weights (apply)",
    "digest_s": "digest of the weights",
    "held_out_s": "held-out scores",
}
"""Parts of a generation, in the order in which they run."""


@dataclass(frozen=True, slots=True)
class HeldOutAnswer:
    """One held-out prompt with the center's answers before and after training.

    The pieces of an answer mark the words that the other answer lacks. `after` is None while there
    is no later sample.
    """

    prompt: str
    gold: str
    before: Sequence[DiffPiece]
    reward_before: float | None
    after: Sequence[DiffPiece] | None
    reward_after: float | None


@dataclass(frozen=True, slots=True)
class TimePart:
    """A part of the time of the generations: in total, in the median generation, as a share."""

    key: str
    name: str
    total_s: float
    median_s: float
    share: float


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
        self.config: Config = run.config
        self.damage: str | None = None
        self.entries: list[JournalEntry] = []
        # Before the journal is read: a run that ends in between must not look stopped.
        self._locked = is_locked(path)
        try:
            check_journal(run)
            self.entries = run.journal.read()
            self.done = len(self.entries)
        except GermlineError as error:
            self.damage = escape_control_characters(str(error))
            self.done = len(run.generations())

    @cached_property
    def ancestors(self) -> tuple[Ancestor, ...]:
        """The runs that led to the starting weights, the first one first."""
        try:
            return self.run.ancestors
        except GermlineError as error:
            self.damage = self.damage or escape_control_characters(str(error))
            return ()

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
    def has_ended(self) -> bool:
        """Whether there is nothing left to train, even where a process still holds the run."""
        return self.done >= self.config.generations or self.early is not None

    @cached_property
    def early(self) -> HeldOutScore | None:
        """The best held-out score, of a run that stopped early as it did not improve on it."""
        return None if self.damage else self.run.stopped_early

    @cached_property
    def failed_share(self) -> float:
        """Share of the completions of all generations whose grading failed."""
        return failed_share(self.rows)[0]

    @cached_property
    def rows(self) -> list[Row]:
        """Rows of the generations that were committed."""
        return [row for row in self.run.generations() if row["generation"] < self.done]

    @cached_property
    def held_out(self) -> list[HeldOutRow]:
        """Held-out scores by number of updates."""
        return [one for one in self.run.held_out() if one.score.generation <= self.done]

    @property
    def verdict(self) -> str | None:
        """Whether the last held-out score is `better` or `worse` than the first, if either."""
        if self.better is None or len(self.scores) < 2:
            return None
        gain = self.scores[-1].mean - self.scores[0].mean
        if self.better.startswith("lower"):
            gain = -gain
        return "better" if gain > 0 else "worse" if gain < 0 else None

    @cached_property
    def worse(self) -> ScoreDeclineAdvice | None:
        """Since when, how certain and why the score declines; None where it does not."""
        return score_decline_advice(self.config, self.path, self.rows, self.scores)

    @property
    def scores(self) -> list[HeldOutScore]:
        """Held-out scores that could be computed."""
        return [one.score for one in self.held_out if math.isfinite(one.score.mean)]

    @property
    def best(self) -> HeldOutScore | None:
        """The best held-out score; of equal ones the first."""
        return best_score(self.scores)

    @cached_property
    def ensemble(self) -> list[Row]:
        """Members that vote for the center, best first; empty where the method keeps none."""
        return self.run.ensemble()

    @property
    def answers_by_vote(self) -> bool:
        """Whether held-out scores are those of a vote of members and not of the center."""
        return scored_as(self.config) == "vote"

    @property
    def counted(self) -> str:
        """The unit in which held-out scores are counted."""
        return counted_by(self.config)

    @cached_property
    def walk(self) -> list[float | None]:
        """Distance of a random walk of the updates after each generation."""
        start = inherited_walk(self.ancestors, self.config.search.unit)
        return walked([entry.update for entry in self.entries], self.config.optimizer, start)

    @property
    def metric(self) -> str:
        """The metric of the held-out scores."""
        return self.held_out[0].score.metric if self.held_out else "score"

    @cached_property
    def better(self) -> str | None:
        """Which direction of the metric is better, if the class of the task defines it."""
        try:
            task = implementation("task", self.config.task.kind)
        except GermlineError:
            return None  # of a plugin that is not installed here
        higher = getattr(task, "metric_higher_is_better", None)
        return None if higher is None else "higher is better" if higher else "lower is better"

    @property
    def answered_at(self) -> list[int]:
        """Number of updates before the first and before the last answers."""
        sampled = [one.score.generation for one in self.held_out if one.samples]
        return sampled[:1] + sampled[1:][-1:]

    @cached_property
    def answers(self) -> list[HeldOutAnswer]:
        """Held-out prompts with the answers at the start and the latest answers."""
        sampled = [one for one in self.held_out if one.samples]
        if not sampled:
            return []
        later = sampled[-1].samples if len(sampled) > 1 else ()
        return [_answer(*pair) for pair in paired_samples(sampled[0].samples, later)]

    @cached_property
    def last_rollouts(self) -> list[Row]:
        """Recorded rollouts of the last generation, best first, their texts shortened."""
        rows = [row for row in self.run.rollouts() if row["generation"] == self.done - 1]
        texts = ("prompt", "completion", "failure")
        shown = [
            row
            | {"completion": transcript(row["completion"], row.get("turns", ()), row.get("ended"))}
            for row in rows
        ]
        return [
            row | {name: bounded_text(row[name]) for name in texts if row[name]} for row in shown
        ]

    @cached_property
    def parts(self) -> list[TimePart]:
        """Parts of the time of the generations, longest first."""
        laps: dict[str, list[float]] = {}
        for row in self.rows:
            for key, seconds in _laps(row).items():
                laps.setdefault(key, []).append(seconds)
        whole = sum(map(sum, laps.values())) or 1.0
        scored = {} if self.config.method.members_generate else {"grading_s": "scoring, grading"}
        words = {key: escape_control_characters(key.removesuffix("_s")) for key in laps}
        names = words | PARTS | scored
        parts = [
            TimePart(key, names[key], sum(found), float(np.median(found)), sum(found) / whole)
            for key, found in laps.items()
        ]
        return sorted(parts, key=lambda part: -part.total_s)

    @property
    def seconds(self) -> float:
        """Total time of all generations."""
        return sum(part.total_s for part in self.parts)

    @property
    def median_s(self) -> float:
        """Median time of a generation without calibration and held-out scores."""
        rare = ("calibrate_s", "held_out_s")
        times = [
            sum(seconds for key, seconds in _laps(row).items() if key not in rare)
            for row in self.rows
        ]
        return float(np.median(times)) if times else math.nan

    @property
    def tokens(self) -> int:
        """Number of tokens that were generated in training."""
        return sum(row["tokens"] for row in self.rows)

    @property
    def tokens_per_s(self) -> float:
        """Median speed of a generation."""
        known = [row["tokens_per_s"] for row in self.rows if row["tokens_per_s"] is not None]
        return float(np.median(known)) if known else math.nan

    @property
    def peak_memory_mb(self) -> dict[str, float]:
        """Peak memory by place; empty when an older version of germline did not record it."""
        found: dict[str, float] = {}
        for row in self.rows:
            for place, value in row.get("peak_memory_mb", {}).items():
                found[escape_control_characters(place)] = max(value, found.get(place, 0.0))
        return found

    @property
    def written_at(self) -> tuple[str, str] | None:
        """Times at which the first and the last generation were written (UTC), if recorded."""
        known = [row["written_at"] for row in self.rows if "written_at" in row]
        return (_moment(known[0]), _moment(known[-1])) if known else None

    @cached_property
    def failures(self) -> list[tuple[str, int]]:
        """Reasons why completions earned the floor or have no reward, most frequent first."""
        counts: Counter[str] = Counter()
        for row in self.rows:
            counts.update(row["failures"])
        named = [(bounded_text(reason, 200), count) for reason, count in counts.most_common()]
        rest = sum(count for _, count in named[MOST_REASONS:])
        others = [(f"{len(named) - MOST_REASONS} more reasons", rest)] if rest else []
        return named[:MOST_REASONS] + others

    @property
    def failed(self) -> int:
        """Number of completions whose grading failed."""
        return sum(sum(row["failures"].values()) for row in self.rows)

    @property
    def missing(self) -> int:
        """Number of missing rewards."""
        return sum(row["missing"] for row in self.rows)

    @property
    def rollouts(self) -> int | None:
        """Number of training rollouts; None when an older version did not count them."""
        if not all("rollouts" in row for row in self.rows):
            return None
        return sum(row["rollouts"] for row in self.rows)

    @property
    def batch_examples(self) -> int:
        """Examples of a generation: `batch_size`, or all where the task has fewer."""
        return batch_examples(self.rows, self.config)

    @property
    def without_update(self) -> str:
        """Say in how many generations all members had the same fitness; empty for none."""
        return without_update(self.rows, self.config)

    @property
    def compares_members(self) -> bool:
        """Whether members are compared with each other; a single one is with a running mean."""
        return compares_members(self.config)

    @property
    def journal_bytes(self) -> int:
        """Size of the journal, which together with the base model rebuilds any generation."""
        file = self.run.journal.path
        return file.stat().st_size if file.exists() else 0

    @property
    def files(self) -> list[tuple[str, int]]:
        """Files of the run directory with sizes in bytes; a folder has that of its contents."""
        found = []
        for file in sorted(self.path.iterdir()):
            if not file.name.startswith("."):
                inside = file.rglob("*") if file.is_dir() else [file]
                total = sum(one.stat().st_size for one in inside if one.is_file())
                found.append((escape_control_characters(file.name) + "/" * file.is_dir(), total))
        return found


def bounded_text(text: str, longest: int = LONGEST_TEXT) -> str:
    """Shorten a text, count the omitted characters, and replace control characters."""
    cut = len(text) - longest
    if cut <= 0:
        return escape_control_characters(text)
    return f"{escape_control_characters(text[:longest])} … ({cut:,} more characters)"


def _answer(before: HeldOutSample, after: HeldOutSample | None) -> HeldOutAnswer:
    old = bounded_text(before.transcript)
    new = bounded_text(after.transcript) if after else old
    one, other = diff.diff_words(old, new)
    return HeldOutAnswer(
        bounded_text(before.prompt),
        bounded_text(before.answer),
        one,
        before.reward,
        other if after else None,
        after.reward if after else None,
    )


def _laps(row: Row) -> dict[str, float]:
    """Split the evaluation into generation and waiting for graders; drop parts without time."""
    timing = row["timing"]
    laps = {key: float(value) for key, value in timing.items() if key != "evaluate_s"}
    if row.get("calibration") and "calibrate_s" not in laps:
        laps["calibrate_s"] = laps.pop("ask_s", 0.0)  # Older versions counted it there.
    if "evaluate_s" in timing:
        laps["grading_s"] = max(0.0, timing["evaluate_s"] - laps.get("generate_s", 0.0))
    return {key: seconds for key, seconds in laps.items() if seconds > 0}


def _moment(stamp: object) -> str:
    return escape_control_characters(str(stamp))[:16].replace("T", " ")
