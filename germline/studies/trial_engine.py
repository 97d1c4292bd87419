"""A model to try things out on: it plays, is read, trains a little and goes back to its start.

Everything here has seeds of its own, so that a run begun afterwards meets no noise it was tuned on;
and only training examples are played, so that held-out scores stay held out.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from germline import noise
from germline.config import Config, Nes
from germline.engines.master_weights import Masters
from germline.fleet import LocalFleet
from germline.protocols import Engine, Shaping, Strategy, TextScorer
from germline.run.build_fleet import engine_placement
from germline.run.build_parts import make_decoding, make_engine, make_graders
from germline.shaping import utilities
from germline.strategies import make_strategy
from germline.tasks import make_task
from germline.training import batches, generations
from germline.types import Decoding, Example, GenerationRecord, GermlineError

FRESH_SHARE, MOST_FRESH = 3, 128
"""A third of the training examples, and no more than this, judges trials and is not trained on."""

FEWEST = 6
"""With fewer training examples than this, all of them train and judge."""


@dataclass(frozen=True)
class TrialEngine:
    """One engine with its graders, a seed of its own, and the state it started from.

    Attributes:
        config: with one engine.
        run_seed: of all noise here.
        fresh: examples trials are judged by.
        batch_of: the training examples of any generation; none of the fresh ones.
    """

    config: Config
    engine: Engine
    fleet: LocalFleet
    shape: Shaping
    decoding: Decoding
    run_seed: int
    fresh: Sequence[Example]
    batch_of: Callable[[int], Sequence[Example]]
    _start: dict[str, torch.Tensor] = field(repr=False)

    @property
    def reader(self) -> TextScorer:
        """The engine, as one that reads texts.

        Raises:
            GermlineError: it cannot.
        """
        if isinstance(self.engine, TextScorer):
            return self.engine
        raise GermlineError(
            f"probe: engine.kind={self.config.engine.kind} cannot tell how likely a text is; use "
            "engine.kind=inprocess"
        )

    def strategy(self, generations: int, **changes: object) -> Strategy:
        """Make the config's strategy with some of its settings replaced."""
        section = self.config.strategy.model_copy(update=changes)
        return make_strategy(
            section,
            run_seed=self.run_seed,
            generations=generations,
            dimension=self.engine.weights.dimension,
        )

    def directions(self, sigma: float, most: int, generations: int) -> Strategy:
        """Make what asks for members in random directions, so many at most.

        Other strategies than nes begin with such members too, and adapt from there. What goes by
        generations before, such as a running baseline, is left out.
        """
        section = self.config.strategy
        nes = (
            section
            if isinstance(section, Nes)
            else Nes(sigma_unit=getattr(section, "sigma_unit", "auto"))
        )
        few = Nes(
            population=min(most, nes.population),
            antithetic=nes.antithetic,
            sigma=sigma,
            sigma_unit=nes.sigma_unit,
        )
        return make_strategy(few, run_seed=self.run_seed, generations=generations)

    def score(self, examples: Sequence[Example]) -> float:
        """Return the mean reward of the center, NaN where all of it is missing."""
        rewards = self.fleet.evaluate_center(examples, self.decoding).rewards
        return float(np.nanmean(rewards)) if not np.isnan(rewards).all() else float("nan")

    def moved(self) -> float:
        """Return how far theta is from the start: rms over all searched numbers, in their unit."""
        masters = self._masters
        squares, count = 0.0, 0
        for info in masters.searched:
            step = masters.tensors[info.name].cpu() - self._start[info.name]
            squares += float((step / masters.units[info.name]).square().sum(dtype=torch.float64))
            count += step.numel()
        return math.sqrt(squares / count)

    def size(self) -> float:
        """Return the rms of the searched tensor in the middle, in its unit; 1 where it is 0."""
        units = self._masters.units
        sizes = sorted(
            float(self._start[name].square().mean(dtype=torch.float64).sqrt()) / unit
            for name, unit in units.items()
        )
        return sizes[len(sizes) // 2] or 1.0

    @property
    def _masters(self) -> Masters:
        weights = self.engine.weights
        if not isinstance(weights, Masters):
            raise TypeError(f"{type(weights).__name__} does not show its masters")
        return weights

    def train(self, strategy: Strategy, span: range) -> Iterator[GenerationRecord]:
        """Run generations of the loop as any run does, on the training examples kept for that."""
        return generations(strategy, self.shape, self.fleet, self.batch_of, self.decoding, span)

    def restart(self) -> None:
        """Set masters and moments back to the start, bit for bit."""
        self.engine.weights.load_state(self._start)
        self.engine.refresh()


@contextmanager
def open_trial_engine(config: Config, seed: int) -> Iterator[TrialEngine]:
    """Load what a config names, for one engine, and end its processes afterwards.

    Raises:
        GermlineError: something named in the config cannot be had.
    """
    config = engine_placement(config, 0)
    task = make_task(config.task)
    run_seed = _seed(config.seed, seed)
    kept, fresh = _split(task.examples("train"), run_seed)
    engine = make_engine(config)
    with make_graders(config, task) as graders:
        yield TrialEngine(
            config=config,
            engine=engine,
            fleet=LocalFleet(engine, graders, config.microbatch),
            shape=partial(utilities, config.shaping),
            decoding=replace(make_decoding(config, task), noise_seed=run_seed),
            run_seed=run_seed,
            fresh=fresh,
            batch_of=batches(kept, config.batch_size, run_seed),
            _start={
                name: one.detach().to("cpu", copy=True)
                for name, one in engine.weights.state().items()
            },
        )


def _seed(config_seed: int, seed: int) -> int:
    """Derive a run seed that no config will name."""
    return int.from_bytes(hashlib.sha256(f"probe {config_seed} {seed}".encode()).digest()[:8])


def _split(examples: Sequence[Example], run_seed: int) -> tuple[list[Example], list[Example]]:
    """Part training examples into those that train here and those that judge."""
    if len(examples) < FEWEST:
        return list(examples), list(examples)
    order = noise.epoch_permutation(run_seed, "probe", 0, len(examples)).tolist()
    judges = min(MOST_FRESH, len(examples) // FRESH_SHARE)
    return [examples[n] for n in order[judges:]], [examples[n] for n in order[:judges]]
