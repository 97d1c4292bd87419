"""GRPO and RLOO as TRL has them: the field's baselines, in a run directory like any other.

The center samples G completions of each example, as in `zo_grpo`; they are graded once. Advantages
and loss are those of TRL's `GRPOTrainer` (Shao et al. 2024, arXiv 2402.03300) or `RLOOTrainer`
(Ahmadian et al. 2024, arXiv 2402.14740), and PyTorch computes the gradient by backpropagation.
Generation, stop strings, rewards, held-out scores and the optimizer are germline's: prompts and
completions reach TRL as tokens, so a run differs from one of `es` in how it learns alone.

    num_iterations times:  g = d/d theta loss of TRL, summed over `rows` completions at a time
                           g <- g min(1, max_grad_norm / ||g||)
                           theta <- theta + step(-g)       by `strategy.optimizer`, default Adam

Differences from TRL's defaults: no gradient checkpointing, fp32 unless `engine.dtype` says
otherwise, a constant rate unless it has a schedule, no dropout, RLOO without a KL term and with
groups of 8. A reward that is missing has no advantage, as in TRL.

In an episode of several turns, tokens of the environment are masked (GRPO only).

Limits: seeds cannot repeat a gradient, so a run resumes from its newest snapshot, to the same bits
on the same machine; one engine, in this process. Needs the extra `trl`.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64

from germline.config import Config, Grpo, Rloo
from germline.engines.inprocess import InProcessEngine
from germline.methods.method import Evaluated, Learned, Method, evaluate_again
from germline.methods.reward_term import RewardTerm
from germline.methods.sampled_batch import mean_rewards
from germline.methods.trl_gradient import TokenRow, TrlGradient, token_rows
from germline.protocols import EpisodeTask, Fleet, Strategy, Task
from germline.shaping import fitness
from germline.signal_metrics import informative_examples
from germline.types import (
    Decoding,
    Evaluation,
    Example,
    GermlineError,
    MeanUpdate,
    Population,
    SeedPerturbation,
    Update,
    UpdateSize,
)


class TrlMethod(Method):
    """Theta follows the gradient of TRL's loss, see the module."""

    def __init__(
        self, config: Config, strategy: Strategy, terms: Sequence[RewardTerm] = ()
    ) -> None:
        super().__init__(strategy, _no_utilities, terms)
        assert isinstance(config.method, Grpo | Rloo)
        self.config = config
        self.section = config.method
        self._rows: list[TokenRow] = []
        self._gradient: TrlGradient | None = None

    @classmethod
    def from_config(
        cls, config: Config, strategy: Strategy, task: Task | None, terms: Sequence[RewardTerm]
    ) -> "TrlMethod":
        """Make the method of a run, see `Method.from_config`."""
        return cls(config, strategy, terms)

    @classmethod
    def check_task(cls, config: Config, task: Task) -> None:
        """Refuse a run without TRL, and episodes whose tokens its loss would not mask."""
        kind = config.method.kind
        if importlib.util.find_spec("trl") is None:
            raise GermlineError(f"method.kind={kind} needs TRL: pip install 'germline[trl]'")
        asks = getattr(task, "asks_endpoint", False)
        if asks or (kind == "rloo" and isinstance(task, EpisodeTask)):
            raise GermlineError(
                f"method.kind={kind} cannot train on task.kind={config.task.kind}, which has "
                f"episodes: use method.kind={'es' if asks else 'grpo'}"
            )

    def ask(self, generation: int) -> Population:
        """Return as many members as a group has samples; all of them equal the center."""
        seed = self.config.seed
        members = tuple(
            SeedPerturbation(seed, generation, number, 1, 0.0)
            for number in range(self.section.group_size)
        )
        return Population(generation, members, antithetic=False)

    def evaluate(
        self, fleet: Fleet, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluated:
        """Let the center sample a group of completions of each example, and grade them."""
        section = self.section
        sampled = replace(decoding, temperature=section.temperature)
        samples = evaluate_again(
            lambda: self.evaluate_center_with_terms(fleet, batch, sampled, section.group_size),
            population.generation,
        )
        engine = engine_that_learns(fleet, section.kind)
        self._rows = token_rows(engine, samples, batch)
        return Evaluated(rollouts=samples, members=samples)

    def learn(self, population: Population, evaluated: Evaluated) -> Learned:
        """Return the rate of the step; its gradient is computed where it is applied."""
        rewards = evaluated.rollouts.rewards
        fit = fitness(rewards)
        differ = informative_examples(rewards)
        update = self.strategy.tell(population, np.ones(len(fit)), fit)
        assert isinstance(update, Update)
        # `is_zero_signal` reads the share of examples whose group has an advantage.
        state = replace(update.strategy_state, values={"informative_examples": differ})
        return Learned(
            fitness=fit,
            mean_rewards=mean_rewards(rewards),
            utilities=np.zeros(len(fit)),
            update=replace(
                update, coefficients=(), backpropagated=True, sigma=0.0, strategy_state=state
            ),
            power=None,
            metrics={"best_member": None},
        )

    def is_zero_signal(self, update: Update | MeanUpdate) -> bool:
        """Say whether the rewards of all groups were equal."""
        return not update.strategy_state.values.get("informative_examples")

    def apply(self, fleet: Fleet, update: Update | MeanUpdate) -> UpdateSize | None:
        """Update theta `num_iterations` times along the gradient of the last samples."""
        assert isinstance(update, Update)
        engine = engine_that_learns(fleet, self.section.kind)
        if self._gradient is None:
            self._gradient = TrlGradient(engine, self.section)
        weights, steps = engine.weights, self.section.num_iterations
        for number, gradient in enumerate(self._gradient.of(self._rows, update, steps)):
            for info in weights.searched:
                weights.optimizer.step(
                    info.name,
                    weights.tensors[info.name],
                    gradient[info.name].to(weights.tensors[info.name].device),
                    update.learning_rate,
                    update.generation * steps + number,
                )
            weights.check_finite(update)
            engine.refresh()
        return None

    def metrics(self, update: Update | MeanUpdate) -> Mapping[str, Any]:
        """Return what TRL measured of the last update."""
        return {**super().metrics(update), **(self._gradient.metrics if self._gradient else {})}


def engine_that_learns(fleet: Fleet, kind: str) -> InProcessEngine:
    """Return the one engine of a fleet, whose model this process can run backwards."""
    engine = getattr(fleet, "engine", None)
    if isinstance(engine, InProcessEngine):
        return engine
    raise GermlineError(f"method.kind={kind} needs one engine of engine.kind=inprocess")


def _no_utilities(evaluation: Evaluation, **_: object) -> Float64[np.ndarray, " members"]:
    return np.zeros(len(evaluation.rewards))
