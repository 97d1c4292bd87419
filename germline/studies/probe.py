"""Find a sigma and a learning rate, measured on the model and the task of a config, in minutes.

1. **Sigma.** A few members are evaluated on a few batches at sigmas over several decades. If sigma
   is too small, members write the same as the center, so there is no signal. If it is too large,
   they write degenerate texts. The best sigma is the sane one at which the updates of two halves of
   the examples agree best. The `edge` is the sigma at which the exact KL of members from the base
   model exceeds `SANE_KL` per token: beyond it, random directions break the model.
2. **Learning rate.** Most of an update is noise. With a step of

       (1)  s = rms of a step per searched number, at learning rate 1

   measured on one real update, the noise of T generations adds up like a random walk, to a
   distance of

       (2)  rate * s * sqrt(T)

   Random directions break the model at the edge, so the largest rate that keeps it intact is

       (3)  rate = edge / (s * sqrt(T)),       T = `generations`

   A smaller rate trains more slowly. A larger one improves faster at first and then declines,
   because normalized utilities do not become smaller when the differences between members do.
3. **Trials.** Short trainings at the two best sigmas, at the rate of (3) and a third of it, scored
   on training examples that they do not train on. The worse half ends after every round.

Sigma and learning rate are in the unit of the config; with `strategy.sigma=auto` that is a share of
the weights (`rms`), and the recommendation then sets `sigma_unit`.

Limits: (2) assumes independent steps; trials are shorter than the run; a sigma that follows a
schedule is probed as a constant one. Held-out examples are never used.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from germline.config import AutoLearningRate, AutoSigma, Config, Nes
from germline.config.config_files import as_yaml
from germline.record.atomic_files import explain_write_errors, write_atomically, write_json
from germline.report.text_format import number
from germline.strategies.calibrated_sigma import FIRST_GUESS
from germline.studies.sigma_sweep import SigmaProbe, find_edge, is_sane, probe_center, sweep
from germline.studies.trial_engine import (
    Trial,
    TrialEngine,
    begin_trial,
    open_trial_engine,
    successive_halving,
)
from germline.types import GermlineError

ROUNDS = (5, 10)
"""Generations of a trial after each round."""

MOSTLY_DEGENERATE = 0.5
"""Share of degenerate texts of the base model from which on a probe is in doubt."""


@dataclass(frozen=True)
class ProbeAdvice:
    """Measurements and recommended settings of a probe.

    Attributes:
        sigma: recommended, in `strategy.sigma_unit`.
        learning_rate: recommended; None when the strategy has none.
        edge: sigma at which random members begin to break; the largest one tried if none did.
        step: equation (1), in `sigma_unit`; None when the strategy has no learning rate.
        generations: of the config.
        center: measurements of the base model on the same batches.
        sigma_probes: measurements of members, by rising sigma.
        trials: in order of preference, with their scores; empty when there was no time.
        untrained_score: score of the base model on the examples that score the trials.
        notes: limits of the advice, such as that time ran out.
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


def probe(
    config: Config,
    *,
    minutes: float = 3.0,
    seed: int = 0,
    watch: Callable[[str], None] = lambda _line: None,
) -> ProbeAdvice:
    """Find a sigma and a learning rate for a config; `watch` is called with each step.

    The same config, seed and machine give the same advice, unless time runs out. If time runs out
    before the sigma at which members break is known, there is no advice, because the learning rate
    depends on it.
    """
    _refuse(config, minutes)
    config, unit = _with_numbers(config)
    began = time.perf_counter()
    until = began + 60 * minutes
    with open_trial_engine(config, seed) as bench:
        watch("base model")
        center = probe_center(bench)
        watch(f"base model: {center}")
        sigma_probes = sweep(bench, center, until, watch)
        _check_signal(sigma_probes, center)
        edge = find_edge(sigma_probes, center)
        sigmas = _best([one for one in sigma_probes if is_sane(one, center)])
        watch(f"one generation at sigma {sigmas[0]:g}")
        step, generation_s = _measured_step(bench, sigmas[0])
        rates = _rates(step, edge, config.generations)
        trials = [
            begin_trial(bench, sigma, rate, config.generations)
            for rate in rates
            for sigma in sigmas
        ]
        watch(f"{len(trials)} short trainings")
        rounds = sorted({min(done, config.generations) for done in ROUNDS})

        def in_time(generations: int) -> bool:
            """Return whether so many generations fit, with a margin of a tenth for scoring."""
            return time.perf_counter() + 1.1 * generations * generation_s <= until

        best = successive_halving(bench, trials, rounds, in_time)
        untrained_score = bench.score(bench.fresh)  # of the weights to which it returns
    return ProbeAdvice(
        sigma=best.sigma,
        learning_rate=best.learning_rate,
        edge=edge,
        step=step,
        generations=config.generations,
        center=center,
        sigma_probes=tuple(sigma_probes),
        trials=tuple(trials) if best.scores else (),
        untrained_score=untrained_score,
        notes=tuple(_notes(config, sigma_probes, center, best, rounds)),
        seconds=time.perf_counter() - began,
        sigma_unit=unit,
    )


def _best(sane: Sequence[SigmaProbe]) -> list[float]:
    """Return the two sane sigmas with the best agreement of halves of the examples.

    Of equal ones, the sigma with more examples on which members differ comes first, then the larger
    sigma.
    """
    ordered = sorted(sane, key=lambda one: (max(0.0, one.agreement or 0.0), one.informative))
    return [one.sigma for one in ordered[:-3:-1]]


def _measured_step(bench: TrialEngine, sigma: float) -> tuple[float | None, float]:
    """Run one real generation; return equation (1), if there is a learning rate, and seconds."""
    section = bench.config.strategy
    rate = sigma if isinstance(section, Nes) else None
    began = time.perf_counter()
    list(bench.train(begin_trial(bench, sigma, rate, 1).strategy, range(1)))
    seconds = time.perf_counter() - began
    moved = bench.moved()
    bench.restart()
    if not isinstance(section, Nes) or rate is None:
        return None, seconds
    # With momentum, the total effect of a step is 1 / (1 - momentum) times its first one.
    momentum = getattr(section.optimizer, "momentum", 0.0)
    # A generation without signal has no step; with z-scores the step would be about this large.
    return (moved / rate or 1 / math.sqrt(section.population)) / (1 - momentum), seconds


def _rates(step: float | None, edge: float, generations: int) -> list[float | None]:
    """Return the rates to try: that of equation (3) and a third of it, in two digits."""
    if step is None:
        return [None]
    largest = edge / (step * math.sqrt(generations))
    return [float(f"{rate:.2g}") for rate in (largest, largest / 3)]


def _notes(
    config: Config,
    sigma_probes: Sequence[SigmaProbe],
    center: SigmaProbe,
    best: Trial,
    rounds: Sequence[int],
) -> Iterator[str]:
    """Yield the limits of the advice."""
    if config.prompt_search.options:
        yield "the options of prompt_search were not used: members had the task's own prompt"
    if is_sane(sigma_probes[-1], center):
        yield (
            f"members were still sane at sigma {sigma_probes[-1].sigma:g}, the largest one tried: "
            "the edge may be higher"
        )
    agreements = [one.agreement for one in sigma_probes if is_sane(one, center)]
    if not any(agreement is not None and agreement > 0 for agreement in agreements):
        yield (
            "the updates of two halves of the examples agree at no sane sigma, so the differences "
            "of members may be noise: try a larger batch, or a reward in finer steps"
        )
    if not best.scores or len(best.updates) < rounds[-1]:
        yield "time ran out before the end of the short trainings: allow more --minutes"


def _check_signal(sigma_probes: Sequence[SigmaProbe], center: SigmaProbe) -> None:
    """Raise an error where members are sane at no sigma, or differ at no sane one."""
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
            f"reward on every example ({number(sane[-1].reward)} on average), so ES has no signal "
            "there. Take examples that the model solves sometimes, another model, or a reward in "
            "finer steps; `germline generate` shows what the model writes"
        )


def _with_numbers(config: Config) -> tuple[Config, str | None]:
    """Replace sigma=auto and learning_rate=auto by numbers in the same unit as a start.

    Returns the config, and the unit, if it has to be set with a recommended number.
    """
    section = config.strategy
    if not isinstance(section, Nes):
        return config, None
    changes: dict[str, object] = {"sigma_unit": section.unit}
    if isinstance(section.sigma, AutoSigma):
        changes["sigma"] = FIRST_GUESS[section.unit]
    if isinstance(section.learning_rate, AutoLearningRate):
        changes["learning_rate"] = FIRST_GUESS[section.unit]
    is_unset = section.sigma_unit == "auto" and section.unit != "constant"
    changed = config.model_copy(update={"strategy": section.model_copy(update=changes)})
    return changed, section.unit if is_unset else None


def _refuse(config: Config, minutes: float) -> None:
    if not minutes > 0:
        raise GermlineError(f"probe: --minutes={minutes:g} must be above 0, such as 3")
    if config.method.kind != "es":
        raise GermlineError(
            f"probe: method.kind={config.method.kind} cannot be probed, because the rule for the "
            "learning rate is about updates of method.kind=es; probe the config with method=es"
        )
    if config.strategy.population == 1:
        raise GermlineError(
            "probe: strategy.population=1 has no members to compare: find sigma with "
            "strategy.population=8, and learning_rate for one member by short runs"
        )


def write_advice(advice: ProbeAdvice, folder: Path, command: str) -> Path:
    """Write `probe.yaml` (for `germline train`) and `probe.json`; return the first one's path."""
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    file = folder / "probe.yaml"
    settings: dict[str, dict[str, float | str]] = dict(advice.overrides)
    if advice.broken is not None:
        settings["record"] = {"edge": float(f"{advice.edge:.3g}")}
    text = f"# Recommended by: {command}\n{as_yaml(settings)}"
    write_atomically(file, text.encode())
    write_json(folder / "probe.json", advice.values())
    return file
