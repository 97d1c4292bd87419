"""Findings: what the recorded numbers of a run mean, the same list in every view.

A rule looks at recorded rows alone. The live view, the log, the summary after training, the HTML
page, `--json` and Python show the findings of the same rules. Thresholds are rules of thumb, by
which nano's tasks still learn.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

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
from germline.record.metrics_rows import has_groups, mean_signal, scores_by_scorer, signal
from germline.report.text_format import behavior_change, bounded_text, number, percent
from germline.types import HeldOutScore

WINDOW, QUIET = 10, 3
"""Number of latest generations that are averaged, as a single one is noisy; number of generations
with little or no signal from which on it is a finding."""

FEW_EXAMPLES, FEW_PAIRS, LOW_AGREEMENT = 0.1, 0.3, 0.05
MANY_FAILED, MANY_EMPTY = 0.1, 0.5

FAR_BELOW, NEAR_THE_EDGE = 0.5, 0.8
"""Loss against the start that is a collapse, in standard deviations of the examples' scores; share
of the edge from which on the walk is a finding: the edge is known only roughly."""

DOES_NOT_LEARN = "docs/tuning.md#when-a-run-does-not-learn"
GETS_WORSE = "docs/tuning.md#when-a-run-gets-worse"


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


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that the numbers of a run show.

    Attributes:
        level: a `warning` says that the run should be changed, a `note` how a number is to be read.
        sentence: what was found and what helps, in words.
        values: that were measured, by name.
        docs: page and anchor of the documentation about it.
    """

    code: str
    level: Literal["warning", "note"]
    sentence: str
    values: Mapping[str, Any]
    docs: str = DOES_NOT_LEARN

    def as_json(self) -> dict[str, Any]:
        """Return the finding as values for JSON."""
        return asdict(self)


def findings(run: RunDirectory | Path | str) -> list[Finding]:
    """Return the findings about a run directory, training or not."""
    return find(recorded(run if isinstance(run, RunDirectory) else RunDirectory.open(Path(run))))


def recorded(run: RunDirectory) -> Recorded:
    """Read what rules look at from a run directory."""
    return Recorded(run.config, run.generations(), [row.score for row in run.held_out()])


def find(run: Recorded) -> list[Finding]:
    """Return what all rules find, warnings first."""
    found = [*find_in_scores(run), *find_in_rows(run)]
    return sorted(found, key=lambda one: one.level == "note")


def find_in_scores(run: Recorded) -> list[Finding]:
    """Return what is found in the held-out scores: broken answers, and how the score changed."""
    found = [_broken_answers(run)]
    if len(run.scores) > 1:
        decline = _decline(run)
        is_of_metric = decline and decline.values["metric"] == run.scores[0].metric
        collapse = None if is_of_metric else _collapse(run)
        found += [decline, collapse, None if decline or collapse else _not_learned(run)]
    return [*filter(None, found)]


def find_in_rows(run: Recorded) -> list[Finding]:
    """Return what is found in the latest generations."""
    rules = (_failed, _ties, _agreement, _empty, _walk)
    return [found for rule in rules if (found := rule(run))]


def _broken_answers(run: Recorded) -> Finding | None:
    found = verdict_of(run.scores)
    if found is None or found.word != "broken":
        return None
    change, updates = behavior_change(found), run.scores[-1].generation
    sentence = (
        f"The held-out answers are broken: {change}, from the start to update {updates}. Read them "
        "in the report, and change the reward; go on from the best weights "
        f"({run.config.method.restart})."
    )
    values = {"change": change, "updates": updates}
    return Finding("broken_answers", "warning", sentence, values, GETS_WORSE)


def _collapse(run: Recorded) -> Finding | None:
    """Find a score far below its start, which `_decline` may be too strict to call a decline."""
    start, now = run.scores[0], run.scores[-1]
    if not run.config.method.trains_center or not is_clearly_better(start, now):
        return None
    if abs(start.mean - now.mean) < FAR_BELOW * float(np.nanstd(start.values)):
        return None
    or_sigma = " or sigma" if run.config.method.perturbs else ""
    sentence = (
        f"The held-out {_metric(now)} has collapsed: {number(start.mean)} before training, "
        f"{number(now.mean)} after {count_of(now.generation, 'updates')}. Begin again with a lower "
        f"learning rate{or_sigma}; if the reward rose meanwhile, change the reward."
    )
    values = {"before": start.mean, "now": now.mean, "updates": now.generation}
    return Finding("collapse", "warning", sentence, values, GETS_WORSE)


def _decline(run: Recorded) -> Finding | None:
    """Find a held-out score, or a score by a scorer, that has declined since its best one."""
    if not run.config.method.trains_center:
        return None
    curves = {run.scores[0].metric: run.scores, **scores_by_scorer(run.scores)}
    declines = ((name, find_score_decline(scores)) for name, scores in curves.items())
    metric, found = next((one for one in declines if one[1]), ("", None))
    if found is None:
        return None
    best, now, low, high = (number(found[name]) for name in ("best", "now", "low", "high"))
    sentence = (
        f"The held-out {metric.replace('_', ' ')} has declined since update {found['since']}: it "
        f"went from {best} to {now} (95 % interval of the loss {low} to {high}, over the same "
        f"{found['examples']} examples). Read the answers before and after, and go on from the "
        f"best weights with a lower learning rate ({run.config.method.restart})."
    )
    return Finding("decline", "warning", sentence, found | {"metric": metric}, GETS_WORSE)


def _not_learned(run: Recorded) -> Finding | None:
    best = best_score(run.scores)
    start, last = run.scores[0], run.scores[-1]
    is_solved = last.proportion and last.mean == 1
    if best is None or is_solved or is_clearly_better(best, start):
        return None
    found = paired_difference(last, start)
    differing = found.higher + found.lower if found else None
    counted = f" ({differing} of {found.n} examples differ)" if found else ""
    sentence = (
        f"The held-out {_metric(start)} has not clearly improved: {number(start.mean)} before "
        f"training, {number(last.mean)} now{counted}."
    )
    if differing != 0:
        sentence += " More held-out examples or generations decide it."
    return Finding("not_learned", "note", sentence, {"before": start.mean, "after": last.mean})


def _failed(run: Recorded) -> Finding | None:
    rows = run.rows[-WINDOW:]
    counts = sum((Counter(row["failures"]) for row in rows), Counter[str]())
    share = counts.total() / max(1, sum(row.get("rollouts", 0) for row in rows))
    if share <= MANY_FAILED:
        return None
    reason = bounded_text(max(counts, key=counts.__getitem__), 60)
    sentence = (
        f"The grading of {percent(share)} of the completions of the latest generations failed, "
        f"most often by: {reason}. Members whose grading fails do not differ."
    )
    return Finding("failed", "warning", sentence, {"share": share, "reason": reason})


def _ties(run: Recorded) -> Finding | None:
    """Find generations whose members, or samples of a prompt, hardly differ in reward."""
    rows, groups = run.latest, has_groups(run.latest)
    silent = int(signal(rows[-1], "zeros_in_a_row") or 0) if rows else 0
    tied = mean_signal(rows, "groups_without_signal")
    informative = mean_signal(rows, "informative_examples") if tied is None else 1 - tied
    pairs = mean_signal(rows, "informative_pairs") if len(run.rows) < WINDOW else None
    few_pairs = pairs is not None and pairs < FEW_PAIRS and not groups
    few = few_pairs or (informative is not None and informative < FEW_EXAMPLES)
    if silent < QUIET and not (few and len(rows) >= QUIET):
        return None
    remedy = "use a larger sigma (with sigma=auto, strategy.sigma.target_kl)"
    center = run.scores[-1].reward if run.scores else -math.inf
    if groups:
        remedy = "raise method.temperature or method.group_size"
    elif max(row["fitness"]["max"] for row in rows) < center:
        remedy = f"use a smaller sigma, as the center earns {number(center)}"
    elif run.config.search.grows_sigma:
        remedy = (
            "wait, as sigma grows by itself up to strategy.sigma.max_kl until members show a "
            "signal, or begin with a larger strategy.sigma.target_kl"
        )
    sentence = (
        f"Little or no signal: {'samples' if groups else 'members'} differ on "
        f"{'-' if informative is None else percent(informative)} of the examples, at a mean "
        f"fitness of {number(rows[-1]['fitness']['mean'])}. Where the examples are solved, stop or "
        "take harder ones; where they are too hard, take easier ones or give partial credit; else "
        f"{remedy}."
    )
    values = {"zeros_in_a_row": silent, "informative_examples": informative}
    return Finding("ties", "warning", sentence, values)


def _agreement(run: Recorded) -> Finding | None:
    known = [row for row in run.latest if signal(row, "agreement") is not None]
    agreement, method = mean_signal(known, "agreement"), run.config.method
    if agreement is None or len(known) < QUIET or not method.member_sigmas(1.0):
        return None  # members that equal the center are samples, in no order: no halves can agree
    # K directions with Gaussian coefficients count as K / 3 effective ones.
    directions = 3 * (mean_signal(known, "directions") or 1)
    noise = 0 if len(known) == WINDOW else 1 / math.sqrt(len(known) * directions)
    if agreement >= LOW_AGREEMENT - noise:
        return None
    grouped = has_groups(known)
    members = "method.group_size" if grouped else "strategy.population"
    is_told = grouped or method.backpropagates or run.config.strategy.has_measured_rate
    rate = "" if is_told else "learning_rate=auto, or "
    sentence = (
        f"The updates of the two halves of a batch hardly agree (cosine {number(agreement)}), so "
        f"an update is mostly noise: use {rate}a larger batch_size or {members}."
    )
    return Finding("agreement", "warning", sentence, {"agreement": agreement})


def _empty(run: Recorded) -> Finding | None:
    share = mean_signal(run.latest, "empty") or 0.0
    if share < MANY_EMPTY:
        return None
    sentence = (
        f"{percent(share)} of the completions are empty: sigma or the learning rate is too large, "
        "or the reward favors an empty completion."
    )
    return Finding("empty", "warning", sentence, {"share": share})


def _walk(run: Recorded) -> Finding | None:
    edge = run.config.record.edge
    walk = signal(run.latest[-1], "walk") if run.latest else None
    if not edge or not walk or walk < NEAR_THE_EDGE * edge:
        return None
    sentence = (
        f"The noise of the updates has moved the weights by {number(walk)}, and a model with "
        f"random noise of {number(edge)} breaks: lower the learning rate."
    )
    return Finding("walk", "warning", sentence, {"walk": walk, "edge": edge}, GETS_WORSE)


def _metric(score: HeldOutScore) -> str:
    return score.metric.replace("_", " ")
