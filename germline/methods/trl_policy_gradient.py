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
groups of 8. A reward that is missing has no advantage, as in TRL; with more than half of them
missing, the run stops.

In an episode of several turns, tokens of the environment are masked (GRPO only).

Limits: seeds cannot repeat a gradient, so a run resumes from its newest snapshot, to the same bits
on the same machine; one engine, in this process. Needs the extra `trl`.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from germline.config import Config
from germline.engines.inprocess import InProcessEngine
from germline.methods.method import Evaluated
from germline.methods.policy_gradient import (
    SampledGradientMethod,
    engine_that_learns,
    step_theta,
)
from germline.methods.reward_term import RewardTerm
from germline.methods.trl_gradient import TokenRow, TrlGradient, import_trl, token_rows
from germline.protocols import EpisodeTask, Fleet, Strategy, Task
from germline.shaping import all_equal
from germline.types import Decoding, Example, GermlineError, Population, Update


class TrlMethod(SampledGradientMethod):
    """Theta follows the gradient of TRL's loss, see the module."""

    def __init__(
        self, config: Config, strategy: Strategy, terms: Sequence[RewardTerm] = ()
    ) -> None:
        super().__init__(config, strategy, terms)
        self._rows: list[TokenRow] = []
        self._max_new_tokens = 0
        self._gradient: TrlGradient | None = None

    @classmethod
    def from_config(
        cls, config: Config, strategy: Strategy, task: Task | None, terms: Sequence[RewardTerm]
    ) -> "TrlMethod":
        """Make the method of a run; TRL is imported before anything is measured."""
        if task is not None:
            import_trl(config.method.kind)
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

    def evaluate(
        self, fleet: Fleet, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluated:
        """Let the center sample, and keep the samples as TRL reads them."""
        evaluated = super().evaluate(fleet, population, batch, decoding)
        self._rows = token_rows(engine_that_learns(fleet), evaluated.rollouts, batch)
        self._max_new_tokens = decoding.max_new_tokens
        return evaluated

    def selected(
        self, rewards: Float[np.ndarray, "samples examples"]
    ) -> Bool[np.ndarray, "samples examples"]:
        """Select the samples that have an advantage: those of groups whose rewards differ."""
        known = np.isfinite(rewards)
        columns = zip(rewards.T.astype(np.float64), known.T, strict=True)
        return known & [not all_equal(column[has_reward]) for column, has_reward in columns]

    def train(self, engine: InProcessEngine, update: Update) -> Mapping[str, Any]:
        """Update theta `num_iterations` times along the gradient of the last samples."""
        if self._gradient is None:
            self._gradient = TrlGradient(engine, self.section, self._max_new_tokens)
        steps = self.section.num_iterations
        for number, gradient in enumerate(self._gradient.of(self._rows, update, steps)):
            step_theta(engine, gradient, update, update.generation * steps + number)
        return self._gradient.metrics
