"""The training loop: ask, evaluate, learn, apply, and yield a record of the generation.

Recording, snapshots, held-out scores and stopping are done by the caller of this generator
(`germline.run`); a script can do the same.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from germline import noise
from germline.evaluation.kl_divergence import Keep, MemberKl, nothing_kept
from germline.fleet import Fleet
from germline.fleet.worker_jobs import sigma_scales
from germline.methods.method import Method
from germline.signal_metrics import SignalMetrics
from germline.types import Decoding, Example, GenerationRecord, Update


def generations(
    method: Method,
    fleet: Fleet,
    batch_of: Callable[[int], Sequence[Example]],
    decoding: Decoding,
    span: range,
    diagnosis: SignalMetrics | None = None,
    keep: Keep = nothing_kept,
) -> Iterator[GenerationRecord]:
    """Run the generations of `span`, yielding one record after each update.

    A generation depends on run seed, generation and the state of the method. So a method and a
    diagnosis that recalled the updates of a stopped run continue it.

    Args:
        method: asks for members, evaluates them and learns; `Method(strategy, shape)` is the
            evolution strategy.
        fleet: engines with the weights that are trained.
        batch_of: returns the examples of a generation.
        decoding: of all completions.
        span: numbers of the generations to run.
        diagnosis: measures signal and noise.
        keep: measures divergences from the starting weights, or takes over those that are known.

    Raises:
        GermlineError: too many rewards of a generation are missing, twice in a row.
    """
    diagnosis = diagnosis or SignalMetrics()
    for generation in span:
        clock = _Clock()
        batch = batch_of(generation)
        sampling_noise = replace(decoding, noise_generation=generation)
        divergence = MemberKl(
            *(fleet, batch_of, generation, sampling_noise, diagnosis.on_trial, method.present),
            nothing_kept if generation else keep,
        )
        method.strategy.calibrate(generation, divergence)
        if divergence.trials:
            clock.lap("calibrate_s")
        population = method.ask(generation)
        clock.lap("ask_s")
        evaluated = method.evaluate(fleet, population, batch, sampling_noise)
        clock.lap("evaluate_s")
        learned = method.learn(population, evaluated)
        update, power = learned.update, learned.power
        clock.lap("tell_s")
        sigmas_differ = isinstance(update, Update) and update.sigma_update is not None
        scales = fleet.query(sigma_scales) if sigmas_differ else {}
        signals = diagnosis.of(
            population, evaluated.members, learned.fitness, update, method.shape, evaluated.share
        )
        signals = replace(signals, signal_share=power.share if power else None)
        clock.lap("signals_s")
        method.apply(fleet, update)
        clock.lap("apply_s")
        digest = fleet.digest()
        clock.lap("digest_s")
        yield GenerationRecord(
            generation=generation,
            generations=span.stop,
            fitness=tuple(learned.mean_rewards.tolist()),
            utilities=tuple(learned.utilities.tolist()),
            update=update,
            digest=digest,
            evaluation=evaluated.rollouts,
            held_out=None,
            timing={**clock.laps, "generate_s": evaluated.rollouts.decode_seconds},
            signals=signals,
            sigmas={name: update.sigma * scale for name, scale in scales.items()},
            calibration=tuple(divergence.trials),
            strategy_metrics={**method.metrics(update), **learned.metrics},
        )


def batches(
    examples: Sequence[Example], size: int, run_seed: int, generation_of: Callable[[int], int] = int
) -> Callable[[int], list[Example]]:
    """Return a function from a generation to its batch: epochs of seeded shuffles, cut by `size`.

    If `size` is at least the number of examples, each batch has all of them, in order.
    `generation_of` is `Method.batch_generation` where generations share batches.
    """

    def batch_of(generation: int) -> list[Example]:
        if size >= len(examples):
            return list(examples)
        generation = generation_of(generation)
        places = range(generation * size, (generation + 1) * size)
        epochs = {place // len(examples) for place in places}
        orders = {e: noise.epoch_permutation(run_seed, "batches", e, len(examples)) for e in epochs}
        return [
            examples[int(orders[place // len(examples)][place % len(examples)])] for place in places
        ]

    return batch_of


class _Clock:
    """Wall time of each part of a generation, in seconds."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now
