"""The result of a probe: recommended settings, the reasons in words, and the files it writes."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from germline.config.config_files import as_yaml
from germline.record.atomic_files import explain_write_errors, write_atomically
from germline.report.charts import Chart, Series
from germline.report.plots import draw_panels
from germline.studies.sigma_sweep import SigmaProbe
from germline.studies.trial_engine import Trial

MOSTLY_DEGENERATE = 0.5
"""Share of degenerate texts of the base model from which on a probe is in doubt."""


@dataclass(frozen=True)
class ProbeAdvice:
    """Measurements and recommended settings of a probe.

    Attributes:
        sigma: recommended sigma, in `strategy.sigma_unit`.
        learning_rate: recommended learning rate; None when the strategy has none.
        edge: sigma at which random members begin to break; the largest one tried if none did.
        step: rms of a step per searched number at learning rate 1, in `sigma_unit`; None when
            the strategy has no learning rate.
        generations: number of generations of the config.
        center: measurements of the base model on the same batches.
        sigma_probes: measurements of members, by rising sigma.
        trials: in order of preference, with their scores; empty when there was no time.
        untrained_score: score of the base model on the examples that score the trials.
        notes: limits of the advice, such as that time ran out.
        seconds: duration of the probe.
        sigma_unit: unit of the recommended settings, if the config does not set it.
    """

    sigma: float
    learning_rate: float | None
    edge: float
    step: float | None
    generations: int
    center: SigmaProbe
    sigma_probes: tuple[SigmaProbe, ...]
    trials: tuple[Trial, ...]
    untrained_score: float
    notes: tuple[str, ...]
    seconds: float
    sigma_unit: str | None = None

    @property
    def overrides(self) -> dict[str, dict[str, float | str]]:
        """The recommended settings, as sections of a config."""
        settings: dict[str, float | str] = {"sigma": self.sigma}
        if self.sigma_unit is not None:
            settings["sigma_unit"] = self.sigma_unit
        if self.learning_rate is not None:
            settings["learning_rate"] = self.learning_rate
        return {"strategy": settings}

    @property
    def broken(self) -> SigmaProbe | None:
        """The first measurement beyond the edge; None when members were sane at every sigma."""
        return next((row for row in self.sigma_probes if row.sigma > self.edge), None)

    def verdict(self, sigma_probe: SigmaProbe) -> str:
        """Describe members at a sigma in a word or two."""
        if sigma_probe.sigma == self.sigma:
            return "recommended"
        if sigma_probe.sigma > self.edge:
            return "broken"
        return "no signal" if not (sigma_probe.agreement or 0) > 0 else "sane"

    def reasons(self) -> Iterator[str]:
        """Yield the reasons of the recommendation, one paragraph each, after a doubt if any."""
        if self.center.garbage >= MOSTLY_DEGENERATE:
            yield (
                f"The base model itself writes {self.center.garbage:.0%} degenerate texts, so "
                "these numbers say little: check the prompts, or take a model that answers some."
            )
        chosen = next(row for row in self.sigma_probes if row.sigma == self.sigma)
        broken = self.broken
        yield (
            f"sigma {self.sigma:g}: members still write like the base model ({chosen}); "
            + (
                f"they break at about {self.edge:.2g}."
                if broken
                else f"no member broke up to {self.edge:.2g}, the largest sigma tried."
            )
        )
        if self.learning_rate is not None and self.step is not None:
            distance = self.learning_rate * self.step * math.sqrt(self.generations)
            yield (
                f"learning_rate {self.learning_rate:g}: one update changes a weight by "
                f"{self.step:.2g} times the rate, mostly by noise, which adds up over "
                f"{self.generations} generations like a random walk, to {distance:.2g}; it must "
                f"not exceed {self.edge:.2g}. For another number of generations, divide the rate "
                "by the square root of the ratio."
            )

    def values(self) -> dict[str, Any]:
        """Return all measurements, as values for JSON."""
        return {
            "recommended": self.overrides["strategy"],
            "edge": self.edge,
            "step": self.step,
            "generations": self.generations,
            "center": asdict(self.center),
            "sigma_probes": [
                {**asdict(row), "verdict": self.verdict(row)} for row in self.sigma_probes
            ],
            "trials": [
                {
                    "sigma": trial.sigma,
                    "learning_rate": trial.learning_rate,
                    "scores": [
                        {"generations": done, "score": score} for done, score in trial.scores
                    ],
                }
                for trial in self.trials
            ],
            "untrained_score": self.untrained_score,
            "reasons": list(self.reasons()),
            "notes": list(self.notes),
            "seconds": round(self.seconds, 1),
        }


def write_advice(advice: ProbeAdvice, folder: Path, command: str) -> Path:
    """Write `probe.yaml` (for `germline train`), `probe.json` (all numbers) and `probe.png`.

    Args:
        advice: the result of the probe.
        folder: new, empty or of an earlier probe.
        command: the command line, for the first line of the override file.

    Returns:
        the override file.
    """
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    file = folder / "probe.yaml"
    settings: dict[str, dict[str, float | str]] = dict(advice.overrides)
    if advice.broken is not None:
        settings["record"] = {"edge": float(f"{advice.edge:.3g}")}
    text = f"# Recommended by: {command}\n{as_yaml(settings)}"
    write_atomically(file, text.encode())
    write_atomically(folder / "probe.json", f"{json.dumps(advice.values(), indent=2)}\n".encode())
    marks = {"recommended": advice.sigma}
    if advice.broken is not None:
        marks["members break"] = advice.edge
    rate = "" if advice.learning_rate is None else f", learning rate {advice.learning_rate:g}"
    title = f"recommended: sigma {advice.sigma:g}{rate}"
    draw_panels(folder / "probe.png", title, _panels(advice), marks, log_x=True)
    return file


def _panels(advice: ProbeAdvice) -> list[Chart]:
    def over(label: str, name: str, color: int = 0) -> Series:
        """Return one measurement at each sigma where it is known."""
        pairs = [(row.sigma, getattr(row, name)) for row in advice.sigma_probes]
        known = [(x, y) for x, y in pairs if y is not None and math.isfinite(y)]
        return Series(label, [x for x, _ in known], [y for _, y in known], (), (), color, "points")

    shares = [over("degenerate texts", "garbage"), over("examples that differ", "informative", 1)]
    sigmas = [row.sigma for row in advice.sigma_probes]
    center = Series("center", sigmas, [advice.center.reward] * len(sigmas), (), (), 1, "dashed")
    rows = {
        "KL": [over("nats per token", "divergence")],
        "shares": shares,
        "signal": [over("agreement of halves", "agreement")],
        "reward": [over("members", "reward"), center],
    }
    return [Chart(name, "", "sigma", some, log_y=name == "KL") for name, some in rows.items()]
