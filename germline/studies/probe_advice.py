"""The result of a probe: recommended settings, the reasons in words, and the files it writes."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from germline.record.atomic_files import explain_write_errors, write_atomically
from germline.report.matplotlib_plots import PlotPanel, draw_panels
from germline.studies.sigma_sweep import SigmaProbe
from germline.studies.successive_halving import Trial

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
                "these numbers say little: take a model that answers some of the prompts, or check "
                "the prompts (`germline generate MODEL PROMPT`; task.chat, task.system_prompt)."
            )
        yield self._why_sigma()
        if self.learning_rate is not None and self.step is not None:
            yield self._why_rate(self.learning_rate, self.step)
        if self.trials:
            yield self._trial_results()

    def _why_sigma(self) -> str:
        chosen = next(
            sigma_probe for sigma_probe in self.sigma_probes if sigma_probe.sigma == self.sigma
        )
        text = (
            f"sigma {self.sigma:g}: members still write like the base model (KL "
            f"{chosen.divergence:.2g} nats per token, {chosen.garbage:.0%} degenerate texts), and "
            f"differ on {chosen.informative:.0%} of the examples"
        )
        if chosen.agreement is not None:
            text += (
                "; the updates of two halves of the examples have a cosine of "
                f"{chosen.agreement:.2f}"
            )
        broken = self.broken
        if broken is not None:
            text += (
                f". At {broken.sigma:g} the KL is {broken.divergence:.2g}, and "
                f"{broken.garbage:.0%} of the texts are degenerate: random members break at about "
                f"{self.edge:.2g}"
            )
        return text + "."

    def _why_rate(self, rate: float, step: float) -> str:
        distance = rate * step * math.sqrt(self.generations)
        return (
            f"learning_rate {rate:g}: one update changes a weight by {step:.2g} times the rate. "
            f"Most of that is noise, and the noise of {self.generations} generations adds up like "
            f"a random walk: to {rate:g} x {step:.2g} x sqrt({self.generations}) = "
            f"{distance:.2g}, which must not exceed {self.edge:.2g}, {self._meaning_of_edge}. For "
            "another number of generations, divide the rate by the square root of the ratio."
        )

    @property
    def _meaning_of_edge(self) -> str:
        if self.broken is None:
            return "the largest sigma tried (no member broke)"
        return "the sigma at which random members break"

    def _trial_results(self) -> str:
        done = max(place for trial in self.trials for place, _ in trial.scores)
        behind = sum(not self._is_equal(trial) for trial in self.trials)
        count, where = f"{len(self.trials)} short trainings", "examples they did not train on"
        if not behind:
            return f"{count} have equal scores on {where}: the rules above chose this pair."
        verb = "has the best" if behind == len(self.trials) - 1 else "shares the best"
        return f"Of {count} this pair {verb} score on {where}, after {done} generations."

    def _is_equal(self, trial: Trial) -> bool:
        """Return whether a trial's score equals the recommended one's at the same generation."""
        pair = (self.sigma, self.learning_rate)
        chosen = next(one for one in self.trials if (one.sigma, one.learning_rate) == pair)
        done, score = trial.scores[-1]
        other = dict(chosen.scores)[done]
        return score == other or (math.isnan(score) and math.isnan(other))


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
    text = f"# Recommended by: {command}\n{yaml.safe_dump(settings, sort_keys=False)}"
    write_atomically(file, text.encode())
    write_atomically(folder / "probe.json", _numbers(advice).encode())
    marks = {"recommended": advice.sigma}
    if advice.broken is not None:
        marks["members break"] = advice.edge
    draw_panels(folder / "probe.png", _title(advice), "sigma", _panels(advice), marks)
    return file


def _numbers(advice: ProbeAdvice) -> str:
    """Write all measurements as JSON."""
    values = {
        "sigma": advice.sigma,
        "learning_rate": advice.learning_rate,
        "edge": advice.edge,
        "step": advice.step,
        "generations": advice.generations,
        "center": asdict(advice.center),
        "soundings": [asdict(sigma_probe) for sigma_probe in advice.sigma_probes],
        "trials": [
            {"sigma": trial.sigma, "learning_rate": trial.learning_rate, "scores": trial.scores}
            for trial in advice.trials
        ],
        "untrained_score": advice.untrained_score,
        "notes": list(advice.notes),
        "seconds": round(advice.seconds, 1),
    }
    return json.dumps(values, indent=2) + "\n"


def _title(advice: ProbeAdvice) -> str:
    rate = "" if advice.learning_rate is None else f", learning rate {advice.learning_rate:g}"
    return f"recommended: sigma {advice.sigma:g}{rate}"


def _panels(advice: ProbeAdvice) -> list[PlotPanel]:
    def over(name: str) -> tuple[list[float], list[float]]:
        """Return the sigmas and one measurement at each, where it is known."""
        pairs = [
            (sigma_probe.sigma, getattr(sigma_probe, name)) for sigma_probe in advice.sigma_probes
        ]
        known = [(x, y) for x, y in pairs if y is not None and math.isfinite(y)]
        return [x for x, _ in known], [y for _, y in known]

    return [
        PlotPanel("KL", {"nats per token": over("divergence")}, decades=True),
        PlotPanel(
            "shares",
            {"degenerate texts": over("garbage"), "examples that differ": over("informative")},
        ),
        PlotPanel("signal", {"agreement of halves": over("agreement")}),
        PlotPanel("reward", {"members": over("reward")}, level=(advice.center.reward, "center")),
    ]
