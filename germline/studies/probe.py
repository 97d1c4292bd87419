"""Which sigma, which learning rate: measured on the model and the task of a config, in minutes.

1. **Sigma.** Over decades of sigma a handful of members plays a few batches. Too small, and members
   write what the center writes: no differences, no signal. Too large, and they write garbage. What
   is wanted is the sane sigma at which two halves of the examples agree best on where to go. The
   `edge` is where the exact KL of members to the start passes `SANE_KL` per token: beyond it,
   random directions break the model.
2. **Learning rate.** Most of an update is luck. With a step of

       (1)  s = rms of a step per searched number, at learning rate 1

   measured on one real update, the luck of T generations adds up like a random walk, to a
   distance of

       (2)  rate * s * sqrt(T)

   and as random directions break the model at the edge, the largest rate that leaves it whole is

       (3)  rate = edge / (s * sqrt(T)),       T = `generations`

   Smaller is slower; larger climbs faster at first and falls later, when utilities, which know
   no small differences, push as hard as ever.
3. **Trials.** Short real trainings at the two best sigmas, at the rate of (3) and a third of it,
   judged on training examples they do not train on. The worse half ends after every round.

Sigma and learning rate are in the unit of the config: with `strategy.sigma=auto` shares of the
weights (`rms`), and the recommendation then says so.

Limits: (2) takes steps for independent; trials are shorter than the run; a sigma that follows a
schedule is probed as a constant one. Held-out examples are never played.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence

from germline.config import AutoLearningRate, AutoSigma, Config, Nes
from germline.shaping.ties import RESOLUTION
from germline.strategies.sigma_adaptation import FIRST_GUESS
from germline.studies.probe_advice import ProbeAdvice
from germline.studies.sigma_sweep import SigmaProbe, probe_center, probe_sigma
from germline.studies.successive_halving import Trial, begin_trial, successive_halving
from germline.studies.trial_engine import TrialEngine, open_trial_engine
from germline.types import GermlineError

SANE_KL = 0.1
"""Nats per token; members of the nano model write garbage from a little above it on (measured)."""

SANE_GARBAGE = 0.1
"""More garbage than the center writes, by so much of all texts, is not sane."""

DECADES = 4
"""Sigma is looked at from 1e-4 to 1 times the size of the weights."""

ROUNDS = (5, 10)
"""Generations that trials have had after each round."""


def probe(
    config: Config,
    *,
    minutes: float = 3.0,
    seed: int = 0,
    watch: Callable[[str], None] = lambda _line: None,
) -> ProbeAdvice:
    """Look for a sigma and a learning rate for a config.

    The same config, seed and machine give the same advice, unless time runs out. There is none
    without the time to see where members break: the rate follows from that.

    Args:
        config: what is to be trained.
        minutes: the most it may take.
        seed: of the noise here, which shares nothing with that of runs.
        watch: is told what goes on.

    Raises:
        GermlineError: something cannot be had or probed, or time ran out in the sweep.
    """
    _refuse(config, minutes)
    unit = _unsaid_unit(config)
    config = _given(config)
    clock = _Clock(60 * minutes)
    with open_trial_engine(config, seed) as bench:
        watch("the start")
        center = probe_center(bench)
        sigma_probes = _probe_sigmas(bench, center, clock, watch)
        sane = [one for one in sigma_probes if is_sane(one, center)]
        if not sane:
            raise GermlineError(
                f"probe: members break at sigma={sigma_probes[0].sigma:g} already, the smallest "
                f"that was tried: {sigma_probes[0].garbage:.0%} of their texts are no answers, "
                f"{center.garbage:.0%} of the model's own; look at them with `germline generate`"
            )
        edge = _edge(sigma_probes, center)
        sigmas = _best(sane)
        watch(f"one generation at sigma {sigmas[0]:g}")
        step = _rehearsed(bench, sigmas[0], clock)
        rates = _rates(step, edge, config.generations)
        trials = [
            begin_trial(bench, sigma, rate, config.generations)
            for rate in rates
            for sigma in sigmas
        ]
        watch(f"{len(trials)} short trainings")
        rounds = sorted({min(done, config.generations) for done in ROUNDS})
        best = successive_halving(bench, trials, rounds, clock.allows)
    return ProbeAdvice(
        sigma=best.sigma,
        learning_rate=best.learning_rate,
        edge=edge,
        step=step,
        generations=config.generations,
        center=center,
        sigma_probes=tuple(sigma_probes),
        trials=tuple(trials) if best.scores else (),
        notes=(*_unplayed(config), *_notes(sigma_probes, center, best, rounds)),
        seconds=clock.gone_s,
        sigma_unit=unit,
    )


def is_sane(sigma_probe: SigmaProbe, center: SigmaProbe) -> bool:
    """Say whether members still write like the model they come from.

    Their reward may not have collapsed either: below that of the center by more than twice what
    they differ by. Where members are all alike, both means are the same but for the rounding of
    their sums.
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
    """Sound every sigma of the ladder from below, until two in a row are broken.

    Raises:
        GermlineError: time ran out before that.
    """
    found: list[SigmaProbe] = []
    sigmas = sigma_ladder(bench.size())
    for sigma in sigmas:
        if found and clock.gone_s > clock.limit_s:
            raise GermlineError(
                f"probe: --minutes={clock.limit_s / 60:g} were gone at sigma {found[-1].sigma:g}, "
                f"before it was seen where members break ({len(found)} of up to {len(sigmas)} "
                f"sigmas): give --minutes={_enough(clock, len(found), len(sigmas)):g}, or a "
                "smaller batch"
            )
        watch(f"sigma {sigma:g}")
        found.append(probe_sigma(bench, sigma))
        if len(found) > 1 and not any(is_sane(one, center) for one in found[-2:]):
            break
    return found


def _enough(clock: "_Clock", done: int, sigmas: int) -> float:
    """Return minutes in which the whole sweep fits, and as long again for short trainings."""
    return math.ceil(20 * clock.gone_s / 60 * sigmas / done) / 10


def _edge(sigma_probes: Sequence[SigmaProbe], center: SigmaProbe) -> float:
    """Return where members begin to break: between the last sane sigma and the next.

    The KL grows like a power of sigma, so that it is a line in logarithms; where something else
    broke first, or a KL is 0, the edge is taken to lie halfway.
    """
    sane = [is_sane(one, center) for one in sigma_probes]
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
    """Return the two sane sigmas whose signal is clearest: where halves of the examples agree.

    Where they do not, more examples that tell members apart are better than fewer; of equals, the
    larger sigma.
    """
    ordered = sorted(sane, key=lambda one: (max(0.0, one.agreement or 0.0), one.informative))
    return [one.sigma for one in ordered[:-3:-1]]


def _rehearsed(bench: TrialEngine, sigma: float, clock: "_Clock") -> float | None:
    """Play one real generation: measure equation (1), and how long it takes.

    Returns:
        the step at learning rate 1; None where the strategy has no learning rate.
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
    # A velocity goes on pushing: in the end a step counts 1 / (1 - momentum) times.
    momentum = getattr(section.optimizer, "momentum", 0.0)
    # A generation without signal moves nothing; one with z-scores moves about so far.
    return (moved / rate or 1 / math.sqrt(section.population)) / (1 - momentum)


def _rates(step: float | None, edge: float, generations: int) -> list[float | None]:
    """Return the rates to try: that of equation (3), and a third of it."""
    if step is None:
        return [None]
    largest = edge / (step * math.sqrt(generations))
    return [_rounded(largest), _rounded(largest / 3)]


def _notes(
    sigma_probes: Sequence[SigmaProbe], center: SigmaProbe, best: Trial, rounds: Sequence[int]
) -> Iterator[str]:
    """Say what makes the advice weaker than it looks."""
    if is_sane(sigma_probes[-1], center):
        yield (
            f"members were still sane at sigma {sigma_probes[-1].sigma:g}, the largest tried: the "
            "edge may lie higher"
        )
    yield from _without_signal([one for one in sigma_probes if is_sane(one, center)])
    if not best.scores:
        yield "no time was left for short trainings: the rules alone speak; give more --minutes"
    elif len(best.updates) < rounds[-1]:
        yield "time ran out before the last round of the short trainings; give more --minutes"


def _without_signal(sane: Sequence[SigmaProbe]) -> Iterator[str]:
    """Say what it may be, where no sane sigma tells better members from worse ones."""
    agreed = [one.agreement for one in sane if one.agreement is not None]
    differing = max(one.informative for one in sane)
    if any(one > 0 for one in agreed):
        return
    if not differing:
        yield (
            "no sane sigma tells better members from worse ones: the reward is the same whatever "
            "they do; try a larger batch, a reward in finer steps, or examples the model can "
            "sometimes solve"
        )
    elif agreed:
        yield (
            f"sane members differ on up to {differing:.0%} of the examples, but halves of the "
            "examples never agree on who is better: it may all be luck; try a larger batch, a "
            "reward in finer steps, or examples the model can sometimes solve"
        )
    else:
        yield (
            "whether halves of the examples agree could not be seen: that takes a batch of two or "
            "more"
        )


def _unplayed(config: Config) -> Iterator[str]:
    """Say what of the config was left out."""
    if config.prompt_search.options:
        yield (
            f"the options of prompt_search ({', '.join(config.prompt_search.options)}) were not "
            "used: members and trials used the task's own prompt and temperature"
        )


def _rounded(value: float) -> float:
    """Keep two digits: more would claim what nobody measured."""
    return float(f"{value:.2g}")


def _given(config: Config) -> Config:
    """Replace what would be measured by numbers in the unit of the config, to look for others."""
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
    """Return the unit that a number as sigma would not have by itself; None where it has."""
    section = config.strategy
    if isinstance(section, Nes) and section.sigma_unit == "auto" and section.unit != "constant":
        return section.unit
    return None


def _refuse(config: Config, minutes: float) -> None:
    if not minutes > 0:
        raise GermlineError(f"probe: --minutes={minutes:g} leaves no time: use more than 0, or 3")
    if config.method.kind != "es":
        raise GermlineError(
            f"probe: method.kind={config.method.kind} cannot be probed: what is known of rates is "
            "about updates of method.kind=es; probe the config with method=es"
        )
    if config.strategy.population == 1:
        raise GermlineError(
            "probe: strategy.population=1 has no members to compare: find sigma with "
            "strategy.population=8, and learning_rate for one member by short runs"
        )


class _Clock:
    """How much of the time is gone, and whether so many generations fit into the rest."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.generation_s = 0.0
        self._began = time.perf_counter()

    @property
    def gone_s(self) -> float:
        return time.perf_counter() - self._began

    def allows(self, generations: int) -> bool:
        """Say whether so many fit, with a tenth to spare for scores and surprises."""
        return self.gone_s + 1.1 * generations * self.generation_s <= self.limit_s
