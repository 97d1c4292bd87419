"""What to say of a run that is getting worse: since when, how sure, why, and what to type.

The verdict is that of `evaluation.score_decline`; here are the numbers it is given, and its words.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from germline.config import Config, EsSampleGradientDescent, Nes, RandOpt
from germline.evaluation.score_decline import Cause, RunCurves, ScoreDecline, find_score_decline
from germline.record.atomic_files import Row
from germline.report.advice import signal
from germline.report.text_format import number
from germline.types import HeldOutScore

DECAY = 0.05
"""Share of the way back to its start that weight decay may take theta in a generation."""


@dataclass(frozen=True)
class ScoreDeclineAdvice:
    """A run that is getting worse, in words.

    Attributes:
        found: the numbers.
        what: since when, and how sure.
        why: as far as the signals tell.
        remedy: what to do.
        commands: what does it.
    """

    found: ScoreDecline
    what: str
    why: str
    remedy: str
    commands: tuple[str, ...]

    @property
    def text(self) -> str:
        """All of it in one line, the commands left out."""
        return f"{self.what} {self.why} {self.remedy}"


def score_decline_advice(
    config: Config, path: Path, rows: Sequence[Row], scores: Sequence[HeldOutScore]
) -> ScoreDeclineAdvice | None:
    """Say whether a run is getting worse; None where it is not, or where it cannot.

    Args:
        config: of the run.
        path: its directory, for commands.
        rows: its generations, from 0 on.
        scores: held-out, in order.
    """
    if isinstance(config.method, RandOpt):  # whose weights never move
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
        edge=edge,
    )


def _what(found: ScoreDecline, scores: Sequence[HeldOutScore]) -> str:
    name = "training fitness"
    if found.measure == "held-out score":
        name = f"held-out {scores[0].metric.replace('_', ' ')}"
    paired = f", the same {found.examples} examples compared" if found.examples else ""
    by_chance = f"chance of luck {_probabilities(found.chance)}"
    return (
        f"Getting worse since {found.since} updates: {name} went from {number(found.best)} to "
        f"{number(found.now)}, which is worse by {number(found.loss)} (95 % interval "
        f"{number(found.low)} to {number(found.high)}{paired}; {by_chance})."
    )


def _probabilities(chance: float) -> str:
    return "below 1e-6" if chance < 1e-6 else f"at most {chance:.1g}"


def _why(cause: Cause, curves: RunCurves) -> str:
    if cause == "walk":
        return (
            f"The walk is used up: noise has carried the weights {number(_last(curves.walk))}, and "
            f"random members break at {number(curves.edge)}."
        )
    return REASONS[cause]


REASONS: dict[Cause, str] = {
    "hack": "The reward is hacked: it rises while the metric or the texts get worse.",
    "overfit": "It overfits: training fitness rises meanwhile.",
    "no signal": "There is no signal: the halves of a batch do not agree on the updates, so noise "
    "adds up.",
    "unknown": "The signals do not say why; most often the learning rate is too large for so many "
    "generations.",
}

REMEDIES: dict[Cause, str] = {
    "hack": "Keep the best weights, read what the model writes now, and change the reward.",
    "overfit": "Keep the best weights; more training examples, or weight decay to the start, help.",
    "walk": "Go on from the best weights with a lower learning rate.",
    "no signal": "Go on from the best weights with a lower learning rate and a larger batch.",
    "unknown": "Go on from the best weights with a lower learning rate.",
}


def _commands(
    found: ScoreDecline, config: Config, path: Path, rows: Sequence[Row]
) -> Iterator[str]:
    """Yield the exact commands; none where gradients were followed, which nothing repeats."""
    if isinstance(config.method, EsSampleGradientDescent):
        return
    run, last = shlex.quote(str(path)), found.since - 1
    best = "best" if found.measure == "held-out score" else str(last)
    if found.cause in ("hack", "overfit"):
        kept = shlex.quote(f"{path}-best")
        if not config.engine.has_own_model:  # It has no format to be written in.
            yield f"germline replay {run} --generation {last} --out {kept}"
    if found.cause != "hack":
        new = shlex.quote(f"{path}-from-{last}")
        settings = _settings(found.cause, config, rows)
        yield f"germline resume {run} --from {best} --out {new} {settings}"


def _settings(cause: Cause, config: Config, rows: Sequence[Row]) -> str:
    """Return the overrides with which a new run would not go the same way."""
    rate = max((row["learning_rate"] or 0.0 for row in rows), default=0.0)
    if not isinstance(config.strategy, Nes) or not rate:
        found = [f"strategy.sigma={max(row['sigma'] for row in rows) / 2:.2g}"]
    elif cause == "overfit":
        decay = DECAY / rate
        found = [
            f"strategy.optimizer.weight_decay={decay:.2g}",
            "strategy.optimizer.decay_to=start",
        ]
    else:
        found = [f"strategy.learning_rate={rate * _share(config.record.edge, rows):.2g}"]
    if cause == "no signal":
        found.append(f"batch_size={2 * config.batch_size}")
    return " ".join(found)


def _share(edge: float | None, rows: Sequence[Row]) -> float:
    """Return how much lower a rate must be for a walk that ends halfway to the edge."""
    walk = _last([signal(row, "walk") for row in rows])
    return 0.25 if edge is None or not walk else min(0.5, edge / (2 * walk))


def _last(values: Sequence[float | None]) -> float | None:
    return next((one for one in reversed(values) if one is not None), None)
