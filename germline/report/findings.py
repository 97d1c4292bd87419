"""Findings: what the recorded numbers of a run mean, the same list in every view.

A rule looks at recorded rows alone. The live view, the log, the summary after training, the HTML
page, `--json` and Python show the findings of the same rules. A sentence has the measured values.
Thresholds are rules of thumb, by which nano's tasks still learn.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from germline.config import Config
from germline.errors import count_of
from germline.evaluation.behavior import verdict_of
from germline.evaluation.score_difference import (
    find_score_decline,
    is_clearly_better,
    paired_difference,
)
from germline.record import RunDirectory
from germline.record.atomic_files import Row
from germline.record.early_stopping import best_score
from germline.record.metrics_rows import has_groups, mean_signal, signal
from germline.report.text_format import behavior_change, bounded_text, number, percent, signed
from germline.types import HeldOutScore

WINDOW, QUIET = 10, 3
"""Number of latest generations that are averaged, as a single one is noisy; number of generations
with little or no signal from which on it is a finding."""

FEW_EXAMPLES, FEW_PAIRS, LOW_AGREEMENT = 0.1, 0.3, 0.05
MANY_FAILED, MANY_EMPTY = 0.1, 0.5

FAR_BELOW, NEAR_THE_EDGE = 0.5, 0.8
"""Loss against the start that is a collapse, in standard deviations of the examples' scores; share
of the edge from which on the walk is a finding: the edge is known only roughly."""

DOES_NOT_LEARN = "tuning.md#when-a-run-does-not-learn"
GETS_WORSE = "tuning.md#when-a-run-gets-worse"

Level = Literal["warning", "note"]
Needs = Literal["rows", "scores"]
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Recorded:
    """What a run has recorded, as far as rules look at it: its rows and scores, in order."""

    config: Config
    rows: Sequence[Row] = ()
    scores: Sequence[HeldOutScore] = ()

    @property
    def latest(self) -> list[Row]:
        """The latest generations that have signals."""
        return [row for row in self.rows[-WINDOW:] if row.get("signals")]


When = Callable[[Recorded], Iterator[Values]]


class Rule(NamedTuple):
    """A rule: when it finds something, with which values, and what is said then."""

    level: Level
    needs: Needs
    sentence: str
    docs: str
    when: When


RULES: dict[str, Rule] = {}
"""Code -> rule, the most serious first."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that the numbers of a run show, with the measured values.

    A `warning` says that the run should be changed, a `note` how a number should be read.
    """

    code: str
    level: Level
    values: Values

    @property
    def sentence(self) -> str:
        """What was found and what helps, in words."""
        shown = {name: _shown(name, value) for name, value in self.values.items()}
        return RULES[self.code].sentence.format_map(shown)

    @property
    def docs(self) -> str:
        """Page and anchor of the documentation about this finding."""
        return f"docs/{RULES[self.code].docs}"

    def as_json(self) -> dict[str, Any]:
        """Return the finding as values for JSON."""
        names = ("code", "level", "sentence", "values", "docs")
        return {name: getattr(self, name) for name in names}


def find(run: Recorded, *needs: str) -> list[Finding]:
    """Return what the rules that need `needs` find, or all rules, in the order of `RULES`."""
    return [
        Finding(code, rule.level, values)
        for code, rule in RULES.items()
        if not needs or rule.needs in needs
        for values in rule.when(run)
    ]


def findings(run: RunDirectory | Path | str) -> list[Finding]:
    """Return the findings about a run directory, training or not."""
    return find(recorded(run if isinstance(run, RunDirectory) else RunDirectory.open(Path(run))))


def recorded(run: RunDirectory) -> Recorded:
    """Read what rules look at from a run directory."""
    scores = [row.score for row in run.held_out()]
    return Recorded(run.config, run.generations(), scores)


def _shown(name: str, value: object) -> str:
    """Format a value for a sentence: shares in percent, numbers with three digits."""
    if name.endswith("share"):
        return "-" if value is None else percent(float(str(value)))
    return number(value) if isinstance(value, float) or value is None else str(value)


def _rule(
    level: Level, needs: Needs, sentence: str, docs: str = DOES_NOT_LEARN
) -> Callable[[When], When]:
    """Enter a function that yields values as the rule of its name."""

    def enter(when: When) -> When:
        RULES[when.__name__.lstrip("_")] = Rule(level, needs, sentence, docs, when)
        return when

    return enter


@_rule(
    "warning",
    "scores",
    "The held-out answers are broken: {change}, from the start to update {updates}. Read them in "
    "the report, and change the reward; go on from the best weights ({restart}).",
    GETS_WORSE,
)
def _broken_answers(run: Recorded) -> Iterator[Values]:
    found = verdict_of(run.scores)
    if found and found.word == "broken":
        at, restart = run.scores[-1].generation, run.config.method.restart
        yield {"change": behavior_change(found), "updates": at, "restart": restart}


@_rule(
    "warning",
    "scores",
    "The held-out {metric} has collapsed: {before} before training, {now} after {updates}. Begin "
    "again with a lower learning rate{or_sigma}; if the reward rose meanwhile, change the reward.",
    GETS_WORSE,
)
def _collapse(run: Recorded) -> Iterator[Values]:
    """Find a score far below its start, which `_decline` may be too strict to call a decline."""
    has_changed = len(run.scores) > 1 and run.config.method.trains_center
    if not has_changed or find_score_decline(run.scores):
        return
    start, now = run.scores[0], run.scores[-1]
    if is_clearly_better(start, now) and abs(start.mean - now.mean) >= FAR_BELOW * float(
        np.nanstd(start.values)
    ):
        updates, or_sigma = now.generation, " or sigma" if run.config.method.perturbs else ""
        values = {"before": start.mean, "now": now.mean, "updates": count_of(updates, "updates")}
        yield {"metric": now.metric.replace("_", " "), **values, "or_sigma": or_sigma}


@_rule(
    "warning",
    "scores",
    "The held-out {metric} has declined since update {since}: it went from {best} to {now} (95 % "
    "interval of the loss {low} to {high}, over the same {examples} examples). Read the answers "
    "before and after, and go on from the best weights with a lower learning rate ({restart}).",
    GETS_WORSE,
)
def _decline(run: Recorded) -> Iterator[Values]:
    if run.config.method.trains_center and (found := find_score_decline(run.scores)):
        values = found | {"restart": run.config.method.restart}
        yield {"metric": run.scores[0].metric.replace("_", " "), **values}


@_rule(
    "warning",
    "rows",
    "The grading of {share} of the completions of the latest generations failed, most often by: "
    "{reason}. Members whose grading fails do not differ.",
)
def _failed(run: Recorded) -> Iterator[Values]:
    rows = run.rows[-WINDOW:]
    counts = sum((Counter(row["failures"]) for row in rows), Counter[str]())
    share = counts.total() / max(1, sum(row.get("rollouts", 0) for row in rows))
    if share > MANY_FAILED:
        yield {"share": share, "reason": bounded_text(max(counts, key=counts.__getitem__), 60)}


@_rule(
    "warning",
    "rows",
    "Little or no signal{in_a_row}: {who} differ on {examples_share} of the examples{of_pairs}, at "
    "a mean fitness of {fitness}. Where the examples are solved, stop or take harder ones; where "
    "they are too hard, take easier ones or give partial credit; else {remedy}.",
)
def _ties(run: Recorded) -> Iterator[Values]:
    """Find generations whose members, or samples of a prompt, hardly differ in reward."""
    rows, groups = run.latest, has_groups(run.latest)
    silent = int(signal(rows[-1], "zeros_in_a_row") or 0) if rows else 0
    without = "signal" if run.config.method.backpropagates else "an update"
    in_a_row = f" ({count_of(silent, 'generations')} in a row without {without})"
    tied = mean_signal(rows, "groups_without_signal")
    informative = mean_signal(rows, "informative_examples") if tied is None else 1 - tied
    pairs = mean_signal(rows, "informative_pairs") if len(run.rows) < WINDOW else None
    of_pairs = f", and {percent(pairs or 0.0)} of the antithetic pairs differ"
    few_pairs = pairs is not None and pairs < FEW_PAIRS and not groups
    few = few_pairs or (informative is not None and informative < FEW_EXAMPLES)
    remedy = "use a larger sigma (with sigma=auto, strategy.sigma.target_kl)"
    center = run.scores[-1].reward if run.scores else -math.inf
    if groups:
        remedy = "raise method.temperature or method.group_size"
    elif max((row["fitness"]["max"] for row in rows), default=center) < center:
        remedy = f"use a smaller sigma, as the center earns {number(center)}"
    if silent >= QUIET or (few and len(rows) >= QUIET):
        yield {
            "silent": silent,
            "in_a_row": in_a_row if silent else "",
            "examples_share": informative,
            "of_pairs": "" if pairs is None else of_pairs,
            "fitness": rows[-1]["fitness"]["mean"],
            "who": "samples" if groups else "members",
            "remedy": remedy,
        }


@_rule(
    "warning",
    "rows",
    "The updates of the two halves of a batch hardly agree (cosine {agreement}), so an update is "
    "mostly noise: use {remedy}.",
)
def _agreement(run: Recorded) -> Iterator[Values]:
    known = [row for row in run.latest if signal(row, "agreement") is not None]
    agreement, method = mean_signal(known, "agreement"), run.config.method
    if agreement is None or len(known) < QUIET or not method.member_sigmas(1.0):
        return  # members that equal the center are samples, in no order: their halves cannot agree
    # K directions with Gaussian coefficients count as K / 3 effective ones.
    directions = 3 * (mean_signal(known, "directions") or 1)
    noise = 0 if len(known) == WINDOW else 1 / math.sqrt(len(known) * directions)
    if agreement < LOW_AGREEMENT - noise:
        grouped = has_groups(known)
        members = "method.group_size" if grouped else "strategy.population"
        is_told = grouped or method.backpropagates or run.config.strategy.has_measured_rate
        rate = "" if is_told else "learning_rate=auto, or "
        yield {"agreement": agreement, "remedy": f"{rate}a larger batch_size or {members}"}


@_rule(
    "warning",
    "rows",
    "{share} of the completions are empty: sigma or the learning rate is too large, or the reward "
    "favors an empty completion.",
)
def _empty(run: Recorded) -> Iterator[Values]:
    if (share := mean_signal(run.latest, "empty") or 0.0) >= MANY_EMPTY:
        yield {"share": share}


@_rule(
    "warning",
    "rows",
    "The noise of the updates has moved the weights by {walk}, and a model with random noise of "
    "{edge} breaks: lower the learning rate.",
    GETS_WORSE,
)
def _walk(run: Recorded) -> Iterator[Values]:
    edge = run.config.record.edge
    walk = signal(run.latest[-1], "walk") if run.latest else None
    if edge and walk and walk >= NEAR_THE_EDGE * edge:
        yield {"walk": walk, "edge": edge}


@_rule(
    "note",
    "scores",
    "The held-out {metric} has not clearly improved: {before} before training, {after} now "
    "(difference {difference}, 95 % interval {interval}, {differing}). More held-out examples or "
    "generations decide it.",
)
def _not_learned(run: Recorded) -> Iterator[Values]:
    best = best_score(run.scores)
    if best is None or len(run.scores) < 2 or is_clearly_better(best, run.scores[0]):
        return
    start, last = run.scores[0], run.scores[-1]
    is_solved = last.proportion and last.mean == 1
    if is_solved or any([*_decline(run), *_collapse(run)]):
        return
    found = paired_difference(last, start)
    changed = found.higher + found.lower if found else "some"
    low, high = found.interval if found else (math.nan, math.nan)
    values = {"metric": start.metric.replace("_", " "), "before": start.mean, "after": last.mean}
    yield values | {
        "difference": signed(found.mean if found else last.mean - start.mean),
        "interval": "unknown" if math.isnan(low) else f"{signed(low)} to {signed(high)}",
        "differing": f"{changed} of {last.n} examples differ",
    }
