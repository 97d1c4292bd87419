"""The advice of a probe: settings, and the measurements they follow from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from germline.config.config_files import as_yaml
from germline.record.atomic_files import write_atomically, write_json
from germline.studies.sigma_sweep import SigmaProbe


@dataclass(frozen=True)
class ProbeAdvice:
    """Measurements and recommended settings of a probe.

    Attributes:
        sigma: recommended, in `strategy.sigma_unit`.
        settings: recommended beside it: `learning_rate`, `relative_step` of `zo_grpo`, or none.
        edge: sigma at which random members begin to break.
        step: equation (1), in `sigma_unit`; None where no learning rate is recommended.
        generations: of the config.
        center: measurements of the base model on the same batches.
        sigma_probes: measurements of members, by rising sigma.
        trials: settings and score of the short trainings, in order of preference.
        untrained_score: of the base model on the same examples; None when there was no time.
        notes: limits of the advice, such as that time ran out.
        sigma_unit: unit of the recommended settings, if the config does not set it.
    """

    sigma: float
    settings: Mapping[str, float]
    edge: float
    step: float | None
    generations: int
    center: SigmaProbe
    sigma_probes: tuple[SigmaProbe, ...]
    trials: tuple[tuple[Mapping[str, float], float], ...]
    untrained_score: float | None
    notes: tuple[str, ...]
    seconds: float
    sigma_unit: str | None = None

    @property
    def learning_rate(self) -> float | None:
        """The recommended learning rate; None where there is none."""
        return self.settings.get("learning_rate")

    @property
    def overrides(self) -> dict[str, dict[str, float | str]]:
        """The recommended settings, as sections of a config."""
        unit = {} if self.sigma_unit is None else {"sigma_unit": self.sigma_unit}
        strategy: dict[str, float | str] = {"sigma": self.sigma, **unit, **self.settings}
        if (step := strategy.pop("relative_step", None)) is None:
            return {"strategy": strategy}
        strategy["learning_rate"] = "auto"
        return {"strategy": strategy, "method": {"relative_step": step}}

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

    def values(self) -> dict[str, Any]:
        """Return all measurements, as values for JSON."""
        return {
            "recommended": {
                name: value
                for section in self.overrides.values()
                for name, value in section.items()
                if value != "auto"
            },
            "edge": self.edge,
            "step": self.step,
            "generations": self.generations,
            **measured(self.center, self.sigma_probes, self.verdict),
            "trials": [{**settings, "score": score} for settings, score in self.trials],
            "untrained_score": self.untrained_score,
            "notes": list(self.notes),
            "seconds": round(self.seconds, 1),
        }


def measured(
    center: SigmaProbe,
    rows: Sequence[SigmaProbe],
    verdict: Callable[[SigmaProbe], str] = lambda _row: "",
) -> dict[str, Any]:
    """Return the measurements of sigmas, as values for JSON."""
    probes = [{**asdict(row), "verdict": verdict(row)} for row in rows]
    return {"center": asdict(center), "sigma_probes": probes}


def write_advice(advice: ProbeAdvice, folder: Path, command: str) -> Path:
    """Write `probe.yaml` (for `germline train`) and `probe.json`; return the first one's path."""
    file = folder / "probe.yaml"
    settings: dict[str, dict[str, float | str]] = dict(advice.overrides)
    if advice.broken is not None:
        settings["record"] = {"edge": float(f"{advice.edge:.3g}")}
    text = f"# Recommended by: {command}\n{as_yaml(settings)}"
    write_atomically(file, text.encode())
    write_json(folder / "probe.json", advice.values())
    return file
