"""The loop: ask, evaluate, shape, tell, apply, and yield what happened.

Recording, snapshots, held-out scores and stopping wrap this generator from outside
(`germline.run`); a script can do the same.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float64

from germline import noise
from germline.evaluation.member_kl import MemberKl
from germline.fleet.engine_queries import ScalesQuery
from germline.protocols import CalibratedStrategy, Fleet, Shaping, Strategy
from germline.shaping import fitness
from germline.signal_metrics import SignalMetrics, signal_power
from germline.types import (
    Decoding,
    Evaluation,
    Example,
    GenerationRecord,
    GermlineError,
    Population,
    Update,
)

TOO_MUCH_MISSING = 0.5
"""Missing more than this share of its rewards, a generation is played again, then the run stops."""


def generations(
    strategy: Strategy,
    shape: Shaping,
    fleet: Fleet,
    batch_of: Callable[[int], Sequence[Example]],
    decoding: Decoding,
    span: range,
    diagnosis: SignalMetrics | None = None,
) -> Iterator[GenerationRecord]:
    """Run the generations of `span`, yielding one record after each update.

    Everything depends on (run seed, generation) and what the strategy recalls, so starting in the
    middle continues a stopped run. So does a diagnosis that was shown its updates.

    Raises:
        GermlineError: too many rewards of a generation are missing, twice.
    """
    diagnosis = diagnosis or SignalMetrics()
    for generation in span:
        clock = _Clock()
        fleet.traffic()  # of whatever was done between generations
        batch = batch_of(generation)
        sampling_noise = replace(decoding, noise_generation=generation)
        divergence = MemberKl(fleet, batch_of, generation, sampling_noise, diagnosis.on_trial)
        if isinstance(strategy, CalibratedStrategy):
            strategy.calibrate(generation, divergence)
        population = strategy.ask(generation)
        clock.lap("ask_s")
        evaluation = _evaluate(fleet, population, batch, sampling_noise)
        beside = (
            fleet.evaluate_center(batch, sampling_noise) if population.evaluate_center else None
        )
        clock.lap("evaluate_s")
        fit, center = _fitness(evaluation, beside)
        utilities = shape(
            evaluation, antithetic=population.antithetic, baseline=population.baseline
        )
        power = signal_power(population, evaluation, shape)
        update = strategy.tell(population, utilities, fit, center, power)
        clock.lap("tell_s")
        stretched = isinstance(update, Update) and update.sigma_update is not None
        scales = fleet.query(ScalesQuery()) if stretched else {}
        signals = diagnosis.of(population, evaluation, fit, update, shape)
        signals = replace(signals, signal_share=power.share if power else None)
        clock.lap("signals_s")
        step = fleet.apply(update)
        clock.lap("apply_s")
        digest = fleet.digest()
        clock.lap("digest_s")
        yield GenerationRecord(
            generation=generation,
            generations=span.stop,
            fitness=tuple(fit.tolist()),
            utilities=tuple(utilities.tolist()),
            update=update,
            digest=digest,
            evaluation=evaluation,
            held_out=None,
            timing={**clock.laps, "generate_s": evaluation.decode_seconds},
            signals=replace(signals, step=step),
            sigmas={name: update.sigma * scale for name, scale in scales.items()},
            traffic=fleet.traffic(),
            calibration=tuple(divergence.trials),
        )


def batches(
    examples: Sequence[Example], size: int, run_seed: int
) -> Callable[[int], list[Example]]:
    """Return the batch of any generation: epochs of seeded shuffles, cut into pieces of `size`.

    When `size` covers all examples, every generation plays all of them in order.
    """

    def batch_of(generation: int) -> list[Example]:
        if size >= len(examples):
            return list(examples)
        places = range(generation * size, (generation + 1) * size)
        epochs = {place // len(examples) for place in places}
        orders = {e: noise.epoch_permutation(run_seed, "batches", e, len(examples)) for e in epochs}
        return [
            examples[int(orders[place // len(examples)][place % len(examples)])] for place in places
        ]

    return batch_of


def _fitness(
    evaluation: Evaluation, beside: Evaluation | None
) -> tuple[Float64[np.ndarray, " members"], float | None]:
    """Return the fitness of the members, and of the center if it played, NaN where it is lost.

    They are fitted together, so that rewards missing of one do not shift it against the other.
    """
    if beside is None:
        return fitness(evaluation.rewards), None
    together = fitness(np.concatenate([evaluation.rewards, beside.rewards]))
    return together[:-1], float(together[-1])


def _evaluate(
    fleet: Fleet, population: Population, batch: Sequence[Example], decoding: Decoding
) -> Evaluation:
    for _attempt in range(2):
        evaluation = fleet.evaluate(population, batch, decoding)
        missing = float(np.isnan(evaluation.rewards).mean())
        if missing <= TOO_MUCH_MISSING:
            return evaluation
    lost = [one.grade for one in evaluation.rollouts if math.isnan(one.grade.reward)]
    reasons = sorted({grade.failure or "no reason given" for grade in lost}) or ["no rollouts"]
    raise GermlineError(
        f"generation {population.generation}: {missing:.0%} of the rewards are "
        f"missing, twice in a row "
        f"({'; '.join(reasons[:3])}). Everything before it is recorded: mend the "
        f"cause, then resume the run"
    )


class _Clock:
    """Wall time of each part of a generation, in seconds."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now
