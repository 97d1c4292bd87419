"""Find a sigma and a learning rate, measured on the model and the task of a config, in minutes.

1. **Sigma.** A few members are evaluated on a few batches at growing sigmas, from that of the
   calibration on (`sigma_sweep`). If sigma is too large, they write degenerate texts. The best
   sigma is the sane one at which the updates of two halves of the examples agree best. The `edge`
   is the sigma at which the exact KL of members from the base model exceeds `SANE_KL` per token:
   beyond it, random directions break the model.
2. **Learning rate.** Most of an update is noise. With a step of

       (1)  s = rms of a step per searched number, at learning rate 1

   measured on one real update, the noise of T generations adds up like a random walk, to a
   distance of

       (2)  rate * s * sqrt(T)

   Random directions break the model at the edge, so the largest rate that keeps it intact is

       (3)  rate = edge / (s * sqrt(T)),       T = `generations`

   A smaller rate trains more slowly. A larger one improves faster at first and then declines,
   because normalized utilities do not become smaller when the differences between members do.

With `method=zo_grpo` the center generates and members score, so any small sigma does, and its
updates are not mostly noise: there is no (1) to (3), and it gets a sigma alone, as `cma` does.

When time runs out, or at Ctrl-C, what was measured so far gives the advice.

Sigma and learning rate are in the unit of the config; with `strategy.sigma=auto` that is a share of
the weights (`rms`), and the recommendation then sets `sigma_unit`.

Limits: (2) assumes independent steps; a sigma that follows a schedule is probed as a constant one.
Terms of the reward that need more than graders (`kl_coef`) are left out. Held-out examples are
never used.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from germline.config import Config, Nes
from germline.config.config_files import as_yaml
from germline.record.atomic_files import write_atomically, write_json
from germline.report.text_format import number
from germline.studies.sigma_sweep import (
    BATCHES,
    MEMBERS,
    MOST_EXAMPLES,
    SigmaProbe,
    find_edge,
    first_sigma,
    is_sane,
    open_probe_engine,
    probe_center,
    probe_sigma,
    sweep,
)
from germline.types import GermlineError

MOSTLY_DEGENERATE = 0.5
"""Share of degenerate texts of the base model from which on a probe is in doubt."""


@dataclass(frozen=True)
class ProbeAdvice:
    """Measurements and recommended settings of a probe.

    Attributes:
        sigma: recommended, in `strategy.sigma_unit`.
        learning_rate: recommended, equation (3); None where a method has none or chooses it.
        sigma_unit: unit of the recommended settings, if the config does not set it.
        edge: sigma at which random members begin to break.
        step: equation (1), in `sigma_unit`; None where no learning rate is recommended.
        generations: of the config.
        center: measurements of the base model on the same batches.
        sigma_probes: measurements of members, by rising sigma.
        notes: limits of the advice, such as that time ran out.
    """

    sigma: float
    learning_rate: float | None
    sigma_unit: str | None
    edge: float
    step: float | None
    generations: int
    center: SigmaProbe
    sigma_probes: tuple[SigmaProbe, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def settings(self) -> dict[str, float | str]:
        """The recommended settings of `strategy`."""
        names = ("sigma", "sigma_unit", "learning_rate")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def verdict(self, sigma_probe: SigmaProbe) -> str:
        """Describe members at a sigma in a word or two."""
        if sigma_probe.sigma == self.sigma:
            return "recommended"
        if sigma_probe.sigma > self.edge:
            return "broken"
        return "no signal" if not (sigma_probe.agreement or 0) > 0 else "sane"

    def values(self) -> dict[str, Any]:
        """Return all measurements, as values for JSON."""
        rows = [{**asdict(row), "verdict": self.verdict(row)} for row in self.sigma_probes]
        names = ("edge", "step", "generations", "notes", "seconds")
        values = {name: getattr(self, name) for name in names}
        center = asdict(self.center)
        return {"recommended": self.settings, "center": center, "sigma_probes": rows, **values}


def write_advice(advice: ProbeAdvice, folder: Path, command: str) -> Path:
    """Write `probe.yaml` (for `germline train`) and `probe.json`; return the first one's path."""
    settings: dict[str, Mapping[str, float | str]] = {"strategy": advice.settings}
    if advice.sigma_probes[-1].sigma > advice.edge:
        settings["record"] = {"edge": float(f"{advice.edge:.3g}")}
    text = f"# Recommended by: {command}\n{as_yaml(settings)}"
    write_atomically(folder / "probe.yaml", text.encode())
    write_json(folder / "probe.json", advice.values())
    return folder / "probe.yaml"


def probe(
    config: Config,
    *,
    minutes: float = 3.0,
    seed: int = 0,
    watch: Callable[[str], None] = lambda _line: None,
    keep: Callable[[Mapping[str, Any]], None] = lambda _values: None,
) -> ProbeAdvice:
    """Find a sigma and a length of steps for a config.

    The same config, seed and machine give the same advice, unless time runs out.

    Args:
        config: of the run.
        minutes: after which, as after Ctrl-C, the advice follows from what was measured so far.
        seed: of the probe.
        watch: is called with each step.
        keep: is called with the measurements so far, after each one.
    """
    _refuse(config, minutes)
    began, stopped = time.perf_counter(), ""
    section, rows, step = config.strategy, list[SigmaProbe](), None
    has_rate = isinstance(section, Nes) and config.method.kind == "es"
    watch(_cost(config, minutes))
    with open_probe_engine(config, seed) as engine:

        def begin(what: str) -> None:
            if time.perf_counter() > began + 60 * minutes:
                raise KeyboardInterrupt("--minutes ran out")
            watch(what)

        def measure(sigma: float) -> SigmaProbe:
            begin(f"sigma {sigma:g}")
            row = probe_sigma(engine, center, sigma)
            watch(f"sigma {sigma:g}: {row}")
            return row

        try:
            watch("base model")
            center = probe_center(engine)
            watch(f"base model: {center}")
            given = getattr(config.search, "sigma", None)
            for rows in sweep(measure, first_sigma(engine, given, watch), center):
                measured = [asdict(row) for row in rows]
                keep({"center": asdict(center), "sigma_probes": measured})
            sigma = _best_sigma(rows, center)
            if isinstance(section, Nes) and has_rate:
                begin(f"one generation at sigma {sigma:g}")
                rate = {"sigma": sigma, "learning_rate": sigma, "sigma_unit": section.unit}
                step = engine.step(section.model_copy(update=rate)) / sigma or None
        except KeyboardInterrupt as stop:
            stopped = str(stop) or "it was interrupted"
    if not rows:
        raise GermlineError(f"probe: {stopped} before a sigma was measured")
    sigma, edge = _best_sigma(rows, center), find_edge(rows, center)
    if has_rate:
        # With momentum, the total effect of a step is 1 / (1 - momentum) times its first one.
        momentum = getattr(config.optimizer, "momentum", 0.0)
        # Z-scores give about this step, whatever the signal.
        usual = 1 / math.sqrt(config.strategy.population or 1)
        step = (step or usual) / (1 - momentum)
    is_unset = getattr(section, "sigma_unit", "") == "auto" and section.unit != "constant"
    return ProbeAdvice(
        sigma=sigma,
        learning_rate=step and largest_rate(edge, step, config.generations),
        sigma_unit=section.unit if is_unset else None,
        edge=edge,
        step=step,
        generations=config.generations,
        center=center,
        sigma_probes=tuple(rows),
        notes=tuple(_notes(config, rows, center, stopped)),
        seconds=round(time.perf_counter() - began, 1),
    )


def largest_rate(edge: float, step: float, generations: int) -> float:
    """Return equation (3), in two digits."""
    return float(f"{edge / (step * math.sqrt(generations)):.2g}")


def _cost(config: Config, minutes: float) -> str:
    members, method = config.strategy.population or MEMBERS, config.method
    few = BATCHES * min(config.batch_size, MOST_EXAMPLES)
    few *= method.generated_rows(min(members, MEMBERS))
    many = method.generated_rows(members) * config.batch_size
    return (
        f"cost: about 5 sigmas of {few:,} completions and a generation of {many:,}; after "
        f"{minutes:g} minutes (--minutes) or Ctrl-C, the advice follows from what was measured"
    )


def _notes(
    config: Config, sigma_probes: Sequence[SigmaProbe], center: SigmaProbe, stopped: str
) -> Iterator[str]:
    """Yield the limits of the advice."""
    if center.garbage >= MOSTLY_DEGENERATE:
        yield (
            f"the base model itself writes {center.garbage:.0%} degenerate texts, so these numbers "
            "say little: check the prompts, or take a model that answers some"
        )
    if config.prompt_search.options:
        yield "the options of prompt_search were not used: members had the task's own prompt"
    if is_sane(sigma_probes[-1], center):
        yield (
            f"members were still sane at sigma {sigma_probes[-1].sigma:g}, the largest one tried: "
            "the edge follows from their KL"
        )
    agreements = [one.agreement for one in sigma_probes if is_sane(one, center)]
    if not any(agreement is not None and agreement > 0 for agreement in agreements):
        yield (
            "the updates of two halves of the examples agree at no sane sigma, so the differences "
            "of members may be noise: try a larger batch, or a reward in finer steps"
        )
    if stopped:
        yield f"{stopped} before the end of the measurements"


def _best_sigma(sigma_probes: Sequence[SigmaProbe], center: SigmaProbe) -> float:
    """Return the sane sigma with the best agreement of halves of the examples.

    Of equal ones, the sigma with more examples on which members differ comes first, then the larger
    sigma.

    Raises:
        GermlineError: members are sane at no sigma, or differ at no sane one.
    """
    sane = [one for one in sigma_probes if is_sane(one, center)]
    if not sane:
        raise GermlineError(
            f"probe: members break at sigma={sigma_probes[0].sigma:g}, the smallest one tried: "
            f"{sigma_probes[0].garbage:.0%} of their texts are degenerate, and "
            f"{center.garbage:.0%} of those of the base model; inspect the latter with "
            "`germline generate`"
        )
    if not any(one.informative for one in sane):
        raise GermlineError(
            f"probe: at sigma {sane[0].sigma:g} to {sane[-1].sigma:g} all members earn the same "
            f"reward on every example ({number(sane[-1].reward)} on average), so there is no "
            "signal. Take examples that the model solves sometimes, another model, or a reward in "
            "finer steps; `germline generate` shows what the model writes"
        )
    ordered = sorted(sane, key=lambda one: (max(0.0, one.agreement or 0.0), one.informative))
    return ordered[-1].sigma


def _refuse(config: Config, minutes: float) -> None:
    if not minutes > 0:
        raise GermlineError(f"probe: --minutes={minutes:g} must be above 0, such as 3")
    if config.method.kind not in ("es", "zo_grpo"):
        raise GermlineError(
            f"probe: method.kind={config.method.kind} cannot be probed, because the rules for the "
            "length of steps are those of es and zo_grpo; probe the config with method=es"
        )
    if config.strategy.population == 1:
        raise GermlineError(
            "probe: strategy.population=1 has no members to compare: find sigma with "
            "strategy.population=8, and learning_rate for one member by short runs"
        )
