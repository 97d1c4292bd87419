"""The training loop: ask, evaluate, shape, tell, apply, and yield a record of the generation.

Recording, snapshots, held-out scores and stopping are done by the caller of this generator
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
from germline.protocols import (
    CalibratedStrategy,
    ConstrainedStrategy,
    Fleet,
    ReportingStrategy,
    Shaping,
    Strategy,
)
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
"""Share of missing rewards above which a generation is evaluated again; then the run stops."""


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

    A generation depends on run seed, generation and the state of the strategy. So a strategy and a
    diagnosis that recalled the updates of a stopped run continue it.

    Raises:
        GermlineError: too many rewards of a generation are missing, twice in a row.
    """
    diagnosis = diagnosis or SignalMetrics()
    for generation in span:
        clock = _Clock()
        fleet.traffic()  # drops the bytes of what was done between generations
        batch = batch_of(generation)
        sampling_noise = replace(decoding, noise_generation=generation)
        divergence = MemberKl(fleet, batch_of, generation, sampling_noise, diagnosis.on_trial)
        if isinstance(strategy, CalibratedStrategy):
            strategy.calibrate(generation, divergence)
            if divergence.trials:
                clock.lap("calibrate_s")
        population = strategy.ask(generation)
        clock.lap("ask_s")
        evaluation = _evaluate(fleet, population, batch, sampling_noise)
        of_center = (
            fleet.evaluate_center(batch, sampling_noise) if population.evaluate_center else None
        )
        if isinstance(strategy, ConstrainedStrategy):
            evaluation, of_center = strategy.weigh(population, batch, evaluation, of_center)
        clock.lap("evaluate_s")
        fit, center = _fitness(evaluation, of_center)
        utilities = shape(
            evaluation, antithetic=population.antithetic, baseline=population.baseline
        )
        power = signal_power(population, evaluation, shape)
        update = strategy.tell(population, utilities, fit, center, power)
        clock.lap("tell_s")
        sigmas_differ = isinstance(update, Update) and update.sigma_update is not None
        scales = fleet.query(ScalesQuery()) if sigmas_differ else {}
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
            strategy_metrics=(
                strategy.metrics(update) if isinstance(strategy, ReportingStrategy) else {}
            ),
        )


def batches(
    examples: Sequence[Example], size: int, run_seed: int
) -> Callable[[int], list[Example]]:
    """Return a function from a generation to its batch: epochs of seeded shuffles, cut by `size`.

    If `size` is at least the number of examples, each batch has all of them, in order.
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
    evaluation: Evaluation, of_center: Evaluation | None
) -> tuple[Float64[np.ndarray, " members"], float | None]:
    """Return the fitness of the members, and of the center if it was evaluated; NaN: missing.

    They are fitted together, so that missing rewards do not shift the center against the members.
    """
    if of_center is None:
        return fitness(evaluation.rewards), None
    together = fitness(np.concatenate([evaluation.rewards, of_center.rewards]))
    return together[:-1], float(together[-1])


def _evaluate(
    fleet: Fleet, population: Population, batch: Sequence[Example], decoding: Decoding
) -> Evaluation:
    for _attempt in range(2):
        evaluation = fleet.evaluate(population, batch, decoding)
        missing = float(np.isnan(evaluation.rewards).mean())
        if missing <= TOO_MUCH_MISSING:
            return evaluation
    lost = [rollout.grade for rollout in evaluation.rollouts if math.isnan(rollout.grade.reward)]
    reasons = sorted({grade.failure or "no reason given" for grade in lost}) or ["no rollouts"]
    kept = "Earlier generations are recorded: remove" if population.generation else "Remove"
    raise GermlineError(
        f"generation {population.generation}: {missing:.0%} of the rewards are "
        f"missing, twice in a row "
        f"({'; '.join(reasons[:3])}). {kept} the cause, then resume the run"
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
