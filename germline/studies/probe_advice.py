"""What a probe recommends: the pair, the reasons in plain words, and the files that keep them."""

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


@dataclass(frozen=True)
class ProbeAdvice:
    """What the probe found, and what it recommends.

    Attributes:
        sigma: recommended, in `strategy.sigma_unit`.
        learning_rate: recommended; None where the strategy has none.
        generations: the run was laid out for.
        edge: sigma at which random members begin to break; the largest tried where none did.
        step: rms of a step per searched number at learning rate 1, in `sigma_unit`; None where
            the strategy has no learning rate.
        center: the start itself, on the batches of the soundings.
        soundings: by rising sigma.
        trials: in order of preference, with their scores; empty where there was no time.
        notes: what a reader should know, such as that time ran out.
        seconds: how long it took.
        sigma_unit: of what is recommended, where the config does not say it.
    """

    sigma: float
    learning_rate: float | None
    edge: float
    step: float | None
    generations: int
    center: SigmaProbe
    sigma_probes: tuple[SigmaProbe, ...]
    trials: tuple[Trial, ...]
    notes: tuple[str, ...]
    seconds: float
    sigma_unit: str | None = None

    @property
    def overrides(self) -> dict[str, dict[str, float | str]]:
        """The recommendation, as a config says it."""
        settings: dict[str, float | str] = {"sigma": self.sigma}
        if self.sigma_unit is not None:
            settings["sigma_unit"] = self.sigma_unit
        if self.learning_rate is not None:
            settings["learning_rate"] = self.learning_rate
        return {"strategy": settings}

    @property
    def broken(self) -> SigmaProbe | None:
        """The first sounding beyond the edge; None where members were sane to the last."""
        return next((one for one in self.sigma_probes if one.sigma > self.edge), None)

    def verdict(self, sigma_probe: SigmaProbe) -> str:
        """Say in a word or two what members at a sigma are like."""
        if sigma_probe.sigma == self.sigma:
            return "recommended"
        if sigma_probe.sigma > self.edge:
            return "broken"
        return "too alike" if not (sigma_probe.agreement or 0) > 0 else "sane"

    def reasons(self) -> Iterator[str]:
        """Say why, a paragraph each."""
        yield self._why_sigma()
        if self.learning_rate is not None and self.step is not None:
            yield self._why_rate(self.learning_rate, self.step)
        if self.trials:
            yield self._what_trials_said()

    def _why_sigma(self) -> str:
        chosen = next(one for one in self.sigma_probes if one.sigma == self.sigma)
        text = (
            f"sigma {self.sigma:g}: members still write like the model they come from (KL "
            f"{chosen.divergence:.2g} nats per token, {chosen.garbage:.0%} garbage), and differ "
            f"on {chosen.informative:.0%} of the examples"
        )
        if chosen.agreement is not None:
            text += (
                f"; two halves of the examples agree on the update (cosine {chosen.agreement:.2f})"
            )
        broken = self.broken
        if broken is not None:
            text += (
                f". At {broken.sigma:g} the KL is {broken.divergence:.2g} and "
                f"{broken.garbage:.0%} is garbage: random members break at about {self.edge:.2g}"
            )
        return text + "."

    def _why_rate(self, rate: float, step: float) -> str:
        distance = rate * step * math.sqrt(self.generations)
        return (
            f"learning_rate {rate:g}: one update moves a weight by {step:.2g} times the rate. Most "
            f"of that is luck, and the luck of {self.generations} generations adds up like a "
            f"random walk: to {rate:g} x {step:.2g} x sqrt({self.generations}) = {distance:.2g}, "
            f"which must not pass the {self.edge:.2g} {self._what_the_edge_is}. For another "
            "number of generations, divide the rate by the root of the ratio."
        )

    @property
    def _what_the_edge_is(self) -> str:
        if self.broken is None:
            return "that was the largest sigma tried (no member broke)"
        return "where random members break"

    def _what_trials_said(self) -> str:
        done = max(place for trial in self.trials for place, _ in trial.scores)
        behind = sum(not self._is_level(trial) for trial in self.trials)
        tried, where = f"{len(self.trials)} short trainings", "examples they did not train on"
        if not behind:
            return f"{tried} came equally far on {where}: the rules alone chose this pair."
        verb = "came furthest" if behind == len(self.trials) - 1 else "was behind no other"
        return f"Of {tried} this pair {verb} on {where}, in {done} generations."

    def _is_level(self, trial: Trial) -> bool:
        """Say whether a trial scored as the recommended one did after as many generations."""
        pair = (self.sigma, self.learning_rate)
        chosen = next(one for one in self.trials if (one.sigma, one.learning_rate) == pair)
        done, score = trial.scores[-1]
        other = dict(chosen.scores)[done]
        return score == other or (math.isnan(score) and math.isnan(other))


def write_advice(advice: ProbeAdvice, folder: Path, command: str) -> Path:
    """Write `probe.yaml` (for `germline train`), `probe.json` (all numbers) and `probe.png`.

    Args:
        advice: what was found.
        folder: new, empty or of an earlier probe.
        command: what was typed, for the first line of the override file.

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
    """Write everything that was measured, without what only a program can use."""
    values = {
        "sigma": advice.sigma,
        "learning_rate": advice.learning_rate,
        "edge": advice.edge,
        "step": advice.step,
        "generations": advice.generations,
        "center": asdict(advice.center),
        "soundings": [asdict(one) for one in advice.sigma_probes],
        "trials": [
            {"sigma": one.sigma, "learning_rate": one.learning_rate, "scores": one.scores}
            for one in advice.trials
        ],
        "notes": list(advice.notes),
        "seconds": round(advice.seconds, 1),
    }
    return json.dumps(values, indent=2) + "\n"


def _title(advice: ProbeAdvice) -> str:
    rate = "" if advice.learning_rate is None else f", learning rate {advice.learning_rate:g}"
    return f"recommended: sigma {advice.sigma:g}{rate}"


def _panels(advice: ProbeAdvice) -> list[PlotPanel]:
    def over(name: str) -> tuple[list[float], list[float]]:
        """Return the sigmas and one number of the soundings, where there is one."""
        pairs = [(one.sigma, getattr(one, name)) for one in advice.sigma_probes]
        known = [(x, y) for x, y in pairs if y is not None and math.isfinite(y)]
        return [x for x, _ in known], [y for _, y in known]

    return [
        PlotPanel("KL", {"nats per token": over("divergence")}, decades=True),
        PlotPanel(
            "shares",
            {"garbage texts": over("garbage"), "examples that tell": over("informative")},
        ),
        PlotPanel("signal", {"agreement of halves": over("agreement")}),
        PlotPanel("reward", {"members": over("reward")}, level=(advice.center.reward, "the start")),
    ]
