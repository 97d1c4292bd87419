"""An engine for trials: it generates, scores texts, trains, and can be reset to the base model.

All seeds of trials differ from those of runs, so that no run uses the noise it was tuned on.
Only training examples are used, so that held-out scores stay independent.

Scores are those of the center, greedy or sampled as in the config, on examples that no trial trains
on.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from germline import noise
from germline.config import AutoSigma, Config, Nes, PromptSearch, StrategyConfig
from germline.engines.master_weights import Masters
from germline.estimates.machine import with_dtype
from germline.fleet import LocalFleet
from germline.generation_loop import batches, generations
from germline.methods.method import Method, check_task, make_method
from germline.protocols import Engine, TextScorer
from germline.run.build_fleet import engine_placement
from germline.run.build_parts import make_decoding, make_engine, make_graders
from germline.run.model_prompts import fit_task
from germline.strategies import make_strategy
from germline.tasks import make_task
from germline.types import Decoding, Example, GermlineError

FRESH_SHARE, MOST_FRESH = 3, 128
"""A third of the training examples, at most 128, score trials and are not trained on."""

FEWEST = 6
"""With fewer training examples than this, all of them are used for both training and scoring."""


@dataclass(frozen=True)
class TrialEngine:
    """One engine with its graders, its own seed, and its initial state.

    Attributes:
        run_seed: of all noise of the trials, that of the decoding too.
        fresh: the examples that score trials.
        batch_of: the training examples of any generation, without the fresh ones.
    """

    config: Config
    engine: Engine
    fleet: LocalFleet
    decoding: Decoding
    run_seed: int
    fresh: Sequence[Example]
    batch_of: Callable[[int], Sequence[Example]]
    _start: dict[str, torch.Tensor] = field(repr=False)

    @property
    def reader(self) -> TextScorer:
        """The engine as a text scorer."""
        if isinstance(self.engine, TextScorer):
            return self.engine
        raise GermlineError(
            f"probe: engine.kind={self.config.engine.kind} cannot compute the log-probabilities of "
            "a text; use engine.kind=inprocess"
        )

    def method(
        self,
        generations: int,
        settings: Mapping[str, float],
        strategy: StrategyConfig | None = None,
    ) -> Method:
        """Make the method of the config, with some settings of its own and of its strategy."""
        named = type(self.config.method).model_fields
        of_method = {name: value for name, value in settings.items() if name in named}
        of_strategy = {name: value for name, value in settings.items() if name not in named}
        search = (strategy or self.config.strategy).model_copy(update=of_strategy)
        section = self.config.method.model_copy(update=of_method)
        changes = {"method": section, "strategy": search, "seed": self.run_seed}
        changes["prompt_search"] = PromptSearch()
        config = self.config.model_copy(update=changes)
        made = make_strategy(
            config.search,
            run_seed=self.run_seed,
            generations=generations,
            dimension=self.engine.weights.dimension,
        )
        return make_method(config, made)

    def few_members(self, sigma: float | AutoSigma, most: int, generations: int) -> Method:
        """Make the method with at most `most` members in random directions.

        Strategies other than nes also begin with such members. Settings that depend on earlier
        generations, such as a running baseline, are left out.
        """
        section = self.config.strategy
        nes = section if isinstance(section, Nes) else Nes()
        few = Nes(
            population=min(most, nes.population),
            antithetic=nes.antithetic,
            sigma=sigma,
            sigma_unit=section.unit,
        )
        return self.method(generations, {}, few)

    def score(self, examples: Sequence[Example]) -> float:
        """Return the mean reward of the center, NaN when every reward is missing."""
        rewards = self.fleet.evaluate_center(examples, self.decoding).rewards
        return float(np.nanmean(rewards)) if not np.isnan(rewards).all() else math.nan

    def moved(self) -> float:
        """Return the distance of theta from the start: rms over the searched numbers, in sigmas."""
        masters = self.engine.weights
        assert isinstance(masters, Masters)  # of every engine that can score texts
        squares, count = 0.0, 0
        for info in masters.searched:
            step = masters.tensors[info.name].cpu() - self._start[info.name]
            squares += float((step / masters.units[info.name]).square().sum(dtype=torch.float64))
            count += step.numel()
        return math.sqrt(squares / count)

    @contextmanager
    def trained(self, settings: Mapping[str, float], count: int) -> Iterator[None]:
        """Have the weights of a short training during a `with` block, and then the initial ones.

        It trains as any run, on the examples that do not score trials. Schedules run over the
        generations of the config.
        """
        method = self.method(self.config.generations, settings)
        try:
            list(generations(method, self.fleet, self.batch_of, self.decoding, range(count)))
            yield
        finally:
            self.engine.weights.load_state(self._start)  # the optimizer's moments too
            self.engine.refresh()


@contextmanager
def open_trial_engine(config: Config, seed: int) -> Iterator[TrialEngine]:
    """Load the model, task and graders of a config for one engine, and close them afterwards."""
    config = with_dtype(engine_placement(config, 0))
    task = fit_task(config, make_task(config.task))
    check_task(config, task)
    run_seed = _seed(config.seed, seed)
    kept, fresh = _split(task.examples("train"), run_seed)
    engine = make_engine(config)
    with make_graders(config, task) as graders:
        yield TrialEngine(
            config=config,
            engine=engine,
            fleet=LocalFleet(engine, graders, config.microbatch),
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
    """Derive a run seed that no config uses."""
    return int.from_bytes(hashlib.sha256(f"probe {config_seed} {seed}".encode()).digest()[:8])


def _split(examples: Sequence[Example], run_seed: int) -> tuple[list[Example], list[Example]]:
    """Split training examples into those for training and those for scoring."""
    if len(examples) < FEWEST:
        return list(examples), list(examples)
    order = noise.epoch_permutation(run_seed, "probe", 0, len(examples)).tolist()
    scoring = min(MOST_FRESH, len(examples) // FRESH_SHARE)
    return [examples[n] for n in order[scoring:]], [examples[n] for n in order[:scoring]]
