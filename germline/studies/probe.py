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
3. **Trials.** Short trainings at the two best sigmas, at the rate of (3) and a third of it, scored
   on training examples that they do not train on. If time runs out, the first ones count.

With `method=zo_grpo` the center generates and members score, so any small sigma does, and its
updates are not mostly noise: there is no (1) to (3). Trials have the best sigma and
`learning_rate=auto`, with `method.relative_step` as it is, doubled and halved.

When time runs out, or at Ctrl-C, what was measured so far gives the advice.

Sigma and learning rate are in the unit of the config; with `strategy.sigma=auto` that is a share of
the weights (`rms`), and the recommendation then sets `sigma_unit`.

Limits: (2) assumes independent steps; trials are shorter than the run; a sigma that follows a
schedule is probed as a constant one. Terms of the reward that need more than graders (`kl_coef`)
are left out. Held-out examples are never used.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from germline.config import AutoLearningRate, Config, Nes, ZerothOrderGrpo
from germline.report.text_format import number
from germline.strategies.calibrated_sigma import FIRST_GUESS
from germline.studies.probe_advice import ProbeAdvice, measured
from germline.studies.sigma_sweep import (
    BATCHES,
    MEMBERS,
    MOST_EXAMPLES,
    SigmaProbe,
    find_edge,
    first_sigma,
    is_sane,
    probe_center,
    probe_sigma,
    sweep,
)
from germline.studies.trial_engine import TrialEngine, open_trial_engine
from germline.types import GermlineError

TRIAL_GENERATIONS = 8
"""Generations of a short training."""

MOSTLY_DEGENERATE = 0.5
"""Share of degenerate texts of the base model from which on a probe is in doubt."""


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
    given, (config, unit) = getattr(config.search, "sigma", None), _with_numbers(config)
    began = time.perf_counter()
    clock = _Clock(began + 60 * minutes)
    watch(_cost(config, minutes))
    with open_trial_engine(config, seed) as bench:
        rows: list[SigmaProbe] = []

        def measure(sigma: float) -> SigmaProbe:
            clock.check()
            watch(f"sigma {sigma:g}")
            row = probe_sigma(bench, center, sigma)
            watch(f"sigma {sigma:g}: {row}")
            return row

        with clock.part():
            watch("base model")
            center = probe_center(bench)
            watch(f"base model: {center}")
            for rows in sweep(measure, first_sigma(bench, given, watch), center):
                keep(measured(center, rows))
        if not rows:
            raise GermlineError(f"probe: {clock.stopped} before a sigma was measured")
        _check_signal(rows, center)
        edge = find_edge(rows, center)
        sigmas = _best([row for row in rows if is_sane(row, center)])
        step, generation_s = None, math.inf
        with clock.part():
            clock.check()
            watch(f"one generation at sigma {sigmas[0]:g}")
            step, generation_s = _measured_step(bench, sigmas[0])
        candidates, trials = _settings(config, sigmas, step, edge), []
        untrained_score, count = None, min(TRIAL_GENERATIONS, config.generations)
        with clock.part():
            clock.check()
            untrained_score = bench.score(bench.fresh)
            for settings in candidates:
                clock.check(count * generation_s)
                watch(f"training {count} generations with {_shown(settings)}")
                with bench.trained(settings, count):
                    trials.append((settings, bench.score(bench.fresh)))
    best, _ = max(trials, key=_score_of_trial, default=(candidates[0], 0.0))
    used = dict(best)
    return ProbeAdvice(
        sigma=used.pop("sigma"),
        settings=used,
        edge=edge,
        step=step,
        generations=config.generations,
        center=center,
        sigma_probes=tuple(rows),
        trials=tuple(trials),
        untrained_score=untrained_score,
        notes=tuple(_notes(config, rows, center, clock.stopped)),
        seconds=time.perf_counter() - began,
        sigma_unit=unit,
    )


class _OutOfTimeError(Exception):
    """The time of the probe is over."""


class _Clock:
    """Ends parts of a probe at Ctrl-C and when time is over.

    Attributes:
        stopped: why a part ended; empty while none did.
    """

    def __init__(self, until: float) -> None:
        self.stopped = ""
        self._until = until

    def check(self, seconds: float = 0.0) -> None:
        """End the part if time is over, or will be in so many seconds and a tenth for scoring."""
        if self.stopped or time.perf_counter() + 1.1 * seconds > self._until:
            raise _OutOfTimeError

    @contextmanager
    def part(self) -> Iterator[None]:
        """Run a part, unless an earlier one was ended."""
        try:
            yield
        except KeyboardInterrupt:
            self.stopped = "it was interrupted"
        except _OutOfTimeError:
            self.stopped = self.stopped or "--minutes ran out"


def _cost(config: Config, minutes: float) -> str:
    """Say what a probe generates, about."""
    members, method = config.strategy.population or MEMBERS, config.method
    few = BATCHES * min(config.batch_size, MOST_EXAMPLES)
    few *= method.generated_rows(min(members, MEMBERS))
    many = method.generated_rows(members) * config.batch_size
    return (
        f"cost: about 5 sigmas of {few:,} completions and 32 generations of {many:,}; after "
        f"{minutes:g} minutes (--minutes) or Ctrl-C, the advice follows from what was measured"
    )


def _best(sane: Sequence[SigmaProbe]) -> list[float]:
    """Return the two sane sigmas with the best agreement of halves of the examples.

    Of equal ones, the sigma with more examples on which members differ comes first, then the larger
    sigma.
    """
    ordered = sorted(sane, key=lambda one: (max(0.0, one.agreement or 0.0), one.informative))
    return [one.sigma for one in ordered[:-3:-1]]


def _score_of_trial(trial: tuple[Mapping[str, float], float]) -> float:
    return -math.inf if math.isnan(trial[1]) else trial[1]


def _shown(settings: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in settings.items())


def _has_rate(config: Config) -> bool:
    return isinstance(config.strategy, Nes) and config.method.kind == "es"


def _measured_step(bench: TrialEngine, sigma: float) -> tuple[float | None, float]:
    """Run one real generation; return equation (1), if there is a learning rate, and seconds."""
    has_rate = _has_rate(bench.config)
    settings = {"sigma": sigma, **({"learning_rate": sigma} if has_rate else {})}
    began = time.perf_counter()
    with bench.trained(settings, 1):
        seconds, moved = time.perf_counter() - began, bench.moved()
    if not has_rate:
        return None, seconds
    # With momentum, the total effect of a step is 1 / (1 - momentum) times its first one.
    momentum = getattr(bench.config.optimizer, "momentum", 0.0)
    return (moved / sigma or _expected_step(bench.config)) / (1 - momentum), seconds


def _expected_step(config: Config) -> float:
    """Return about the step of a generation with z-scores, whatever its signal."""
    return 1 / math.sqrt(config.strategy.population or 1)


def _settings(
    config: Config, sigmas: Sequence[float], step: float | None, edge: float
) -> list[dict[str, float]]:
    """Return the settings to try, in order of preference.

    Those of `es` are both sigmas with the rate of equation (3) and a third of it, in two digits.
    """
    if isinstance(config.method, ZerothOrderGrpo):
        usual = config.method.relative_step
        return [{"sigma": sigmas[0], "relative_step": usual * one} for one in (1, 2, 0.5)]
    if not _has_rate(config):
        return [{"sigma": sigma} for sigma in sigmas]
    largest = edge / ((step or _expected_step(config)) * math.sqrt(config.generations))
    rates = [float(f"{rate:.2g}") for rate in (largest, largest / 3)]
    return [{"sigma": sigma, "learning_rate": rate} for rate in rates for sigma in sigmas]


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
        yield f"{stopped} before the end of the short trainings"


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
            f"reward on every example ({number(sane[-1].reward)} on average), so there is no "
            "signal. Take examples that the model solves sometimes, another model, or a reward in "
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
    if section.is_calibrated:
        changes["sigma"] = FIRST_GUESS[section.unit]
    if not _has_rate(config):
        changes["learning_rate"] = AutoLearningRate()
    elif section.has_measured_rate:
        changes["learning_rate"] = FIRST_GUESS[section.unit]
    is_unset = section.sigma_unit == "auto" and section.unit != "constant"
    changed = config.model_copy(update={"strategy": section.model_copy(update=changes)})
    return changed, section.unit if is_unset else None


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
