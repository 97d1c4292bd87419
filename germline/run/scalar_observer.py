"""What the trackers of a training have in common: which numbers of a run have a curve.

`fitness/{mean,p20,p80,best}`, `search/sigma`, `search/<value that a strategy reports>`,
`parts/<rubric part>`, `signals/<name>`, `step/<name>` and `speed/tokens_per_s` by generation,
`held_out/<metric>`, `held_out/<scorer>`, `held_out_parts/<rubric part>`, `behavior/<detector>`
and `retained/<name>` by updates applied.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from germline.record.metrics_rows import fitness_summary, mean_parts, mean_sigma
from germline.run.observers import Observer
from germline.types import GenerationRecord, HeldOutScore, Rollout, Signals


class ScalarObserver(Observer, ABC):
    """Passes the numbers of every generation and held-out score to `write_scalars`."""

    _scored: int | None = None

    @abstractmethod
    def write_scalars(self, scalars: Mapping[str, float], axis: str, step: int) -> None:
        """Write numbers by name, at a place on `axis`, which is `generation` or `updates`."""

    def on_generation(self, record: GenerationRecord) -> None:
        """Write the numbers of one generation."""
        self.write_scalars(generation_scalars(record), "generation", record.generation)

    def on_held_out(self, score: HeldOutScore, rollouts: Sequence[Rollout] | None = None) -> None:
        """Write a held-out score, once: where training ends early, the last is told again."""
        if score.generation != self._scored:
            self._scored = score.generation
            self.write_scalars(held_out_scalars(score), "updates", score.generation)


def generation_scalars(record: GenerationRecord) -> dict[str, float]:
    """Return the known numbers of a generation by name."""
    fitness, seconds = fitness_summary(record.fitness), record.evaluation.decode_seconds
    scalars = {
        "fitness/mean": fitness["mean"],
        "fitness/p20": fitness["p20"],
        "fitness/p80": fitness["p80"],
        "fitness/best": fitness["max"],
        "search/sigma": mean_sigma(record),
        **_numbers("search", record.strategy_metrics),
        **_numbers("parts", mean_parts(record.evaluation.rollouts)),
        **_signals(record.signals),
        "speed/tokens_per_s": record.evaluation.tokens / seconds if seconds > 0 else None,
    }
    return {name: value for name, value in scalars.items() if value is not None}


def held_out_scalars(score: HeldOutScore) -> dict[str, float]:
    """Return the numbers of a held-out score by name."""
    return {
        **{f"held_out/{one.metric}": one.mean for one in (score, *score.scorers)},
        **{f"retained/{name}": kept.mean for name, kept in score.retained.items()},
        **_numbers("held_out_parts", score.parts),
        **_numbers("behavior", score.behavior),
    }


def _numbers(group: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers by scalar name; other values, such as lists, have no curve."""
    return {
        f"{group}/{name}": float(value)
        for name, value in values.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }


def _signals(signals: Signals | None) -> Mapping[str, float | None]:
    """Return the signals of a generation and of its step by scalar name; empty if not measured."""
    if signals is None:
        return {}
    values = asdict(signals)
    step = values.pop("step") or {}
    named = {f"signals/{name}": value for name, value in values.items()}
    named |= {f"step/{name}": value for name, value in step.items()}
    return {name: None if value is None else float(value) for name, value in named.items()}
