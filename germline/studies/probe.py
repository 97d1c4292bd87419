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
from itertools import pairwise

from germline.config import AutoLearningRate, AutoSigma, Config, Nes
from germline.shaping import RESOLUTION
from germline.strategies.sigma_adaptation import FIRST_GUESS
from germline.studies.probe_advice import ProbeAdvice, describe
from germline.studies.sigma_sweep import SigmaProbe, probe_center, probe_sigma
from germline.studies.successive_halving import Trial, begin_trial, successive_halving
from germline.studies.trial_engine import TrialEngine, open_trial_engine
from germline.types import GermlineError

SANE_KL = 0.1
"""Nats per token; a little above it, members of nano write degenerate texts (measured)."""

SANE_GARBAGE = 0.1
"""Largest share of degenerate texts of sane members, beyond that of the center."""

DECADES = 4
"""Sigmas are tried from 1e-4 to 1 times the size of the weights."""

ROUNDS = (5, 10)
"""Generations of a trial after each round."""


def probe(
    config: Config,
    *,
    minutes: float = 3.0,
    seed: int = 0,
    watch: Callable[[str], None] = lambda _line: None,
) -> ProbeAdvice:
    """Find a sigma and a learning rate for a config.

    The same config, seed and machine give the same advice, unless time runs out. If time runs out
    before the sigma at which members break is known, there is no advice, because the learning rate
    depends on it.

    Args:
        config: the config to be trained.
        minutes: time limit.
        seed: seed of the probe's noise, which is independent of the noise of runs.
        watch: is called with each step of the probe.

    Raises:
        GermlineError: something cannot be loaded or probed, time ran out in the sweep, or members
            earn the same reward at every sigma.
    """
    _refuse(config, minutes)
    unit = _unsaid_unit(config)
    config = _given(config)
    clock = _Clock(60 * minutes)
    with open_trial_engine(config, seed) as bench:
        watch("base model")
        center = probe_center(bench)
        watch(f"base model: {describe(center)}")
        sigma_probes = _probe_sigmas(bench, center, clock, watch)
        sane = [sigma_probe for sigma_probe in sigma_probes if is_sane(sigma_probe, center)]
        if not sane:
            raise GermlineError(
                f"probe: members break at sigma={sigma_probes[0].sigma:g}, the smallest one tried: "
                f"{sigma_probes[0].garbage:.0%} of their texts are degenerate, and "
                f"{center.garbage:.0%} of those of the base model; inspect the latter with "
                "`germline generate`"
            )
        _check_signal(sigma_probes, sane)
        edge = _edge(sigma_probes, center)
        sigmas = _best(sane)
        watch(f"one generation at sigma {sigmas[0]:g}")
        step = _measured_step(bench, sigmas[0], clock)
        rates = _rates(step, edge, config.generations)
        trials = [
            begin_trial(bench, sigma, rate, config.generations)
            for rate in rates
            for sigma in sigmas
        ]
        watch(f"{len(trials)} short trainings")
        rounds = sorted({min(done, config.generations) for done in ROUNDS})
        enough = clock.minutes_for(_generations_of(len(trials), rounds))
        best = successive_halving(bench, trials, rounds, clock.allows)
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
        notes=tuple(_notes(config, sigma_probes, center, best, rounds, enough)),
        seconds=clock.elapsed_s,
        sigma_unit=unit,
    )


def is_sane(sigma_probe: SigmaProbe, center: SigmaProbe) -> bool:
    """Return whether members still write like the base model.

    Their reward must not have collapsed either, that is, be below the center's by more than twice
    its spread over members. If all members are alike, both means differ by rounding only.
    """
    rounding = RESOLUTION * max(abs(center.reward), abs(sigma_probe.reward))
    return (
        sigma_probe.divergence <= SANE_KL
        and sigma_probe.garbage <= center.garbage + SANE_GARBAGE
        and not center.reward - sigma_probe.reward > 2 * sigma_probe.spread + rounding
    )


def sigma_ladder(size: float) -> list[float]:
    """List sigmas in half decades, in round numbers, up to the size of the weights."""
    top = math.ceil(2 * math.log10(size) - 1e-9)
    return [_half_decade(place) for place in range(top - 2 * DECADES, top + 1)]


def _half_decade(place: int) -> float:
    decade, half = divmod(place, 2)
    return float(f"{'3' if half else '1'}e{decade}")


def _probe_sigmas(
    bench: TrialEngine, center: SigmaProbe, clock: "_Clock", watch: Callable[[str], None]
) -> list[SigmaProbe]:
    """Measure members at growing sigmas, until they are broken at two in a row.

    Raises:
        GermlineError: time ran out before that.
    """
    probes: list[SigmaProbe] = []
    sigmas = sigma_ladder(bench.size())
    for sigma in sigmas:
        if probes and clock.elapsed_s > clock.limit_s:
            # Doubled, as the short trainings take about as long as the sweep.
            enough = math.ceil(20 * clock.elapsed_s / 60 * len(sigmas) / len(probes)) / 10
            raise GermlineError(
                f"probe: --minutes={clock.limit_s / 60:g} ran out at sigma {probes[-1].sigma:g}, "
                f"before the sigma at which members break was known: use --minutes={enough:g}, or "
                "a smaller batch"
            )
        watch(f"sigma {sigma:g}")
        probes.append(probe_sigma(bench, sigma))
        watch(f"sigma {sigma:g}: {describe(probes[-1])}")
        if len(probes) > 1 and not any(is_sane(one, center) for one in probes[-2:]):
            break
    return probes


def _edge(sigma_probes: Sequence[SigmaProbe], center: SigmaProbe) -> float:
    """Return the sigma at which members begin to break, between the last sane one and the next.

    The KL grows like a power of sigma, so it is interpolated linearly in logarithms. If another
    criterion fails first, or a KL is 0, the edge is assumed to be halfway.
    """
    sane = [is_sane(sigma_probe, center) for sigma_probe in sigma_probes]
    if all(sane):
        return sigma_probes[-1].sigma
    if not any(sane):
        return sigma_probes[0].sigma
    last = max(place for place, one in enumerate(sane) if one)
    if last + 1 == len(sigma_probes):
        return sigma_probes[last].sigma
    below, above = sigma_probes[last], sigma_probes[last + 1]
    share = 0.5
    if 0 < below.divergence < SANE_KL < above.divergence < math.inf:
        share = math.log(SANE_KL / below.divergence) / math.log(above.divergence / below.divergence)
    return below.sigma * (above.sigma / below.sigma) ** share


def _best(sane: Sequence[SigmaProbe]) -> list[float]:
    """Return the two sane sigmas with the best agreement of halves of the examples.

    Of equal ones, the sigma with more examples on which members differ comes first, then the larger
    sigma.
    """
    ordered = sorted(sane, key=lambda one: (max(0.0, one.agreement or 0.0), one.informative))
    return [one.sigma for one in ordered[:-3:-1]]


def _measured_step(bench: TrialEngine, sigma: float, clock: "_Clock") -> float | None:
    """Run one real generation: measure equation (1), and the duration of a generation.

    Returns:
        the step at learning rate 1; None when the strategy has no learning rate.
    """
    section = bench.config.strategy
    rate = sigma if isinstance(section, Nes) else None
    began = time.perf_counter()
    for _ in bench.train(begin_trial(bench, sigma, rate, 1).strategy, range(1)):
        clock.generation_s = time.perf_counter() - began
    moved = bench.moved()
    bench.restart()
    if not isinstance(section, Nes) or rate is None:
        return None
    # With momentum, the total effect of a step is 1 / (1 - momentum) times its first one.
    momentum = getattr(section.optimizer, "momentum", 0.0)
    # A generation without signal has no step; with z-scores the step would be about this large.
    return (moved / rate or 1 / math.sqrt(section.population)) / (1 - momentum)


def _rates(step: float | None, edge: float, generations: int) -> list[float | None]:
    """Return the rates to try: that of equation (3), and a third of it."""
    if step is None:
        return [None]
    largest = edge / (step * math.sqrt(generations))
    return [_rounded(largest), _rounded(largest / 3)]


def _generations_of(trials: int, rounds: Sequence[int]) -> int:
    """Return the generations of all short trainings: half of them go on after each round."""
    return sum(
        (done - before) * max(1, trials >> place)
        for place, (before, done) in enumerate(pairwise([0, *rounds]))
    )


def _notes(
    config: Config,
    sigma_probes: Sequence[SigmaProbe],
    center: SigmaProbe,
    best: Trial,
    rounds: Sequence[int],
    enough: float,
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
        yield f"time ran out before the end of the short trainings: use --minutes={enough:g}"


def _check_signal(sigma_probes: Sequence[SigmaProbe], sane: Sequence[SigmaProbe]) -> None:
    """Raise an error where members differ at no sane sigma: then no sigma is better than another.

    Raises:
        GermlineError: all members earn the same reward on every example.
    """
    if any(probe.informative for probe in sane):
        return
    first = next((f"{probe.sigma:g}" for probe in sigma_probes if probe.informative), None)
    more = f" (at {first} they differ, but write otherwise than the base model)" if first else ""
    raise GermlineError(
        f"probe: nothing to recommend: at sigma {sane[0].sigma:g} to {sane[-1].sigma:g} all "
        f"members earn the same reward on every example ({sane[-1].reward:.3g} on average), so ES "
        f"has no signal there{more}. Take examples that the model solves sometimes, another model, "
        "or a reward in finer steps; `germline generate` shows what the model writes"
    )


def _rounded(value: float) -> float:
    """Round to two digits, which is more than the precision of the measurements."""
    return float(f"{value:.2g}")


def _given(config: Config) -> Config:
    """Replace sigma=auto and learning_rate=auto by numbers in the same unit as a start."""
    section = config.strategy
    if not isinstance(section, Nes):
        return config
    changes: dict[str, object] = {"sigma_unit": section.unit}
    if isinstance(section.sigma, AutoSigma):
        changes["sigma"] = FIRST_GUESS[section.unit]
    if isinstance(section.learning_rate, AutoLearningRate):
        changes["learning_rate"] = FIRST_GUESS[section.unit]
    return config.model_copy(update={"strategy": section.model_copy(update=changes)})


def _unsaid_unit(config: Config) -> str | None:
    """Return the unit that must be set because a number as sigma would have another; else None."""
    section = config.strategy
    if isinstance(section, Nes) and section.sigma_unit == "auto" and section.unit != "constant":
        return section.unit
    return None


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


class _Clock:
    """The elapsed time, and whether a number of generations fits into the remaining time."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.generation_s = 0.0
        self._began = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._began

    def minutes_for(self, generations: int) -> float:
        """Return the minutes that have passed and those of so many generations, rounded up."""
        seconds = self.elapsed_s + 1.1 * generations * self.generation_s
        return math.ceil(10 * seconds / 60) / 10

    def allows(self, generations: int) -> bool:
        """Return whether so many generations fit, with a margin of a tenth for scoring."""
        return self.elapsed_s + 1.1 * generations * self.generation_s <= self.limit_s
