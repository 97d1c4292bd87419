"""Supervised fine-tuning on the best samples of the center, batch after batch.

The center samples G completions of each example, which are graded. Kept are those with the best
reward of their example, where its rewards differ; with `threshold`, where the best one reaches it.
With the n tokens of the kept completions of a minibatch,

    theta: ascent of 1/n sum_t log p_theta(y_t)

for `epochs` passes over what was kept: the loss of supervised fine-tuning, on prompts and
completions of which the completions count. It is RAFT (Dong et al. 2023, arXiv 2304.06767) where
every example keeps its best sample, and a step of STaR (Zelikman et al. 2022, arXiv 2203.14465)
where `threshold` asks for right answers; here every generation goes on from the last one's weights.

Log-probabilities are those at temperature 1, whatever the temperature of the samples. A divergence
from the start model (`task.kl_coef`) is part of the reward.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from germline.engines.inprocess import InProcessEngine
from germline.methods.policy_gradient import Sample, SampledGradientMethod, TokenOutputs
from germline.shaping import all_equal
from germline.types import Update


class SftOnBestMethod(SampledGradientMethod):
    """Supervised fine-tuning on the best samples, see the module."""

    temperature = 1.0

    def selected(
        self, rewards: Float[np.ndarray, "samples examples"]
    ) -> Bool[np.ndarray, "samples examples"]:
        """Select the best samples of every example that has any to learn from."""
        return np.stack([self._best(column) for column in rewards.T], axis=1)

    def train(self, engine: InProcessEngine, update: Update) -> Mapping[str, Any]:
        """Take the steps of all epochs."""

        def likelihood(_some: Sequence[Sample], outputs: list[TokenOutputs]) -> Tensor:
            return torch.cat([one.log_probs for one in outputs]).sum()

        for _step in self.steps(engine, self.rows, update, likelihood):
            pass
        read = self.section.epochs * sum(row.completion.length for row in self.rows)
        return {"backward_tokens": read, "samples_kept": len(self.rows)}

    def _best(self, rewards: Float[np.ndarray, " samples"]) -> Bool[np.ndarray, " samples"]:
        known = rewards[np.isfinite(rewards)].astype(np.float64)
        best, threshold = known.max(initial=-np.inf), self.section.threshold
        is_good = not all_equal(known) if threshold is None else best >= threshold
        return (rewards == best) & bool(is_good)
