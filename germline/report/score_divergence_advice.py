"""Advice for a run whose reward rises while a held-out scorer finds its completions worse."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from germline.config import Config
from germline.evaluation.score_divergence import (
    ScoreChange,
    ScoreDivergence,
    find_divergences,
)
from germline.report.score_decline_advice import p_value_text
from germline.report.text_format import number
from germline.types import HeldOutScore

REMEDY = (
    "The run may have learned what its reward likes and the scorer does not: read the answers "
    "before and after, keep the weights from before, and change the reward."
)


@dataclass(frozen=True)
class ScoreDivergenceAdvice:
    """A held-out scorer that disagrees with the reward, in words.

    Attributes:
        found: the numbers.
        what: since when, and how certain.
        remedy: what to do.
        commands: the commands that apply the remedy.
    """

    found: ScoreDivergence
    what: str
    remedy: str
    commands: tuple[str, ...]

    @property
    def text(self) -> str:
        """Everything except the commands, in one line."""
        return f"{self.what} {self.remedy}"


def score_divergence_advice(
    config: Config, path: Path, scores: Sequence[HeldOutScore]
) -> list[ScoreDivergenceAdvice]:
    """Return advice for each held-out scorer that disagrees with the reward.

    Args:
        config: of the run.
        path: its directory, for commands.
        scores: held-out scores, in order.
    """
    return [
        ScoreDivergenceAdvice(found, _what(found), REMEDY, _commands(found, config, path))
        for found in find_divergences(scores)
    ]


def _what(found: ScoreDivergence) -> str:
    name = found.scorer
    paired = f", the same {found.examples} examples compared" if found.examples else ""
    return (
        f"The reward and the held-out scorer {name} disagree since update {found.since}: the "
        f"reward of held-out completions rose {_change(found.rise)}, while their score by {name} "
        f"became worse {_change(found.fall)}{paired}."
    )


def _change(change: ScoreChange) -> str:
    return (
        f"from {number(change.before)} to {number(change.now)} (by {number(change.by)}, 95 % "
        f"interval {number(change.low)} to {number(change.high)}; p-value "
        f"{p_value_text(change.chance)})"
    )


def _commands(found: ScoreDivergence, config: Config, path: Path) -> tuple[str, ...]:
    """Return the command that keeps the weights of the best score, where there is one."""
    if not config.method.replayable or config.engine.has_own_model:
        return ()
    kept = shlex.quote(f"{path}-before")
    last = found.since - 1
    return (f"germline export {shlex.quote(str(path))} --generation {last} --out {kept}",)
