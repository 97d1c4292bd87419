"""Advice for a run whose score declines: since when, how certain, why, and which commands help.

`evaluation.score_decline` detects the decline; this module supplies its numbers and puts the result
into words.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from germline.config import Config, Nes
from germline.evaluation.score_decline import ScoreDecline, find_score_decline
from germline.evaluation.score_decline_cause import Cause, RunCurves
from germline.record.atomic_files import Row
from germline.report.advice import signal
from germline.report.text_format import number
from germline.types import HeldOutScore

DECAY = 0.05
"""Share of the way back to its start that weight decay may take theta in a generation."""


@dataclass(frozen=True)
class ScoreDeclineAdvice:
    """A decline of a run's score, in words.

    Attributes:
        found: the numbers.
        what: since when, and how certain.
        why: the cause, as far as the signals show it.
        remedy: what to do.
        commands: the commands that apply the remedy.
    """

    found: ScoreDecline
    what: str
    why: str
    remedy: str
    commands: tuple[str, ...]

    @property
    def text(self) -> str:
        """Everything except the commands, in one line."""
        return f"{self.what} {self.why} {self.remedy}"


def score_decline_advice(
    config: Config, path: Path, rows: Sequence[Row], scores: Sequence[HeldOutScore]
) -> ScoreDeclineAdvice | None:
    """Return advice when the score of a run declines, else None.

    Args:
        config: of the run.
        path: its directory, for commands.
        rows: its generations, from 0 on.
        scores: held-out scores, in order.
    """
    if not config.method.trains_center:
        return None
    curves = _curves(rows, scores, config.record.edge)
    found = find_score_decline(curves)
    if found is None:
        return None
    remedy = REMEDIES[found.cause]
    return ScoreDeclineAdvice(
        found,
        _what(found, scores),
        _why(found.cause, curves),
        remedy,
        tuple(_commands(found, config, path, rows)),
    )


def _curves(rows: Sequence[Row], scores: Sequence[HeldOutScore], edge: float | None) -> RunCurves:
    return RunCurves(
        scores=scores,
        fitness=[row["fitness"]["mean"] for row in rows],
        agreement=[signal(row, "agreement") for row in rows],
        empty=[signal(row, "empty") for row in rows],
        walk=[signal(row, "walk") for row in rows],
        sigma=[row["sigma"] for row in rows],
        cost_weight=[row.get("lambda") for row in rows],
        edge=edge,
    )


def _what(decline: ScoreDecline, scores: Sequence[HeldOutScore]) -> str:
    name = "training fitness"
    if decline.measure == "held-out score":
        name = f"held-out {scores[0].metric.replace('_', ' ')}"
    paired = f", the same {decline.examples} examples compared" if decline.examples else ""
    before, last = decline.averaged
    means = f" (mean of the last {last} scores)" if last else ""
    reference = f" (mean of {before} scores)" if before > 1 else ""
    return (
        f"The score has declined since update {decline.since}: {name} went from "
        f"{number(decline.best)}{reference} to {number(decline.now)}{means}, which is worse by "
        f"{number(decline.loss)} (95 % interval {number(decline.low)} to {number(decline.high)}"
        f"{paired}; p-value {p_value_text(decline.chance)})."
    )


def p_value_text(chance: float) -> str:
    """Format a p-value, or a bound of one."""
    return "below 1e-6" if chance < 1e-6 else f"at most {chance:.1g}"


def _why(cause: Cause, curves: RunCurves) -> str:
    if cause == "walk":
        return (
            f"Noise of the updates has moved the weights by {number(_last(curves.walk))}, and a "
            f"model with random noise of {number(curves.edge)} breaks."
        )
    return REASONS[cause]


REASONS: dict[Cause, str] = {
    "hack": "The reward is hacked: it rises while the metric or the texts get worse.",
    "overfit": "The run overfits: training fitness rises while the held-out score falls.",
    "no signal": "There is no signal: the updates of the two halves of a batch do not agree, so "
    "noise accumulates in the weights.",
    "unknown": "The signals do not show the cause; most often the learning rate is too large for "
    "this number of generations.",
}

REMEDIES: dict[Cause, str] = {
    "hack": "Keep the best weights, read what the model writes now, and change the reward.",
    "overfit": "Keep the best weights; more training examples, or weight decay to the start, help.",
    "walk": "Continue from the best weights with a lower learning rate.",
    "no signal": "Continue from the best weights with a lower learning rate and a larger batch.",
    "unknown": "Continue from the best weights with a lower learning rate.",
}


def _commands(
    decline: ScoreDecline, config: Config, path: Path, rows: Sequence[Row]
) -> Iterator[str]:
    """Yield the exact commands; none where the method's generations cannot be replayed."""
    if not config.method.replayable:
        return
    run, last = shlex.quote(str(path)), decline.since - 1
    best = "best" if decline.measure == "held-out score" else str(last)
    if decline.cause in ("hack", "overfit"):
        kept = shlex.quote(f"{path}-best")
        if not config.engine.has_own_model:  # It has no file format.
            yield f"germline export {run} --generation {last} --out {kept}"
    if decline.cause != "hack":
        new = shlex.quote(f"{path}-from-{'start' if last < 0 else last}")
        settings = _settings(decline.cause, config, rows)
        yield f"germline resume {run} --from {best} --out {new} {settings}"


def _settings(cause: Cause, config: Config, rows: Sequence[Row]) -> str:
    """Return overrides that remove the cause in a new run."""
    rate = max((row["learning_rate"] or 0.0 for row in rows), default=0.0)
    if not isinstance(config.strategy, Nes) or not rate:
        overrides = [f"strategy.sigma={max(row['sigma'] for row in rows) / 2:.2g}"]
    elif cause == "overfit":
        decay = DECAY / rate
        overrides = [
            f"strategy.optimizer.weight_decay={decay:.2g}",
            "strategy.optimizer.decay_to=start",
        ]
    else:
        overrides = [f"strategy.learning_rate={rate * _share(config.record.edge, rows):.2g}"]
    if cause == "no signal":
        overrides.append(f"batch_size={2 * config.batch_size}")
    return " ".join(overrides)


def _share(edge: float | None, rows: Sequence[Row]) -> float:
    """Return the factor on the learning rate with which the walk ends halfway to the edge."""
    walk = _last([signal(row, "walk") for row in rows])
    return 0.25 if edge is None or not walk else min(0.5, edge / (2 * walk))


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)
