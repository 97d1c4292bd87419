"""Proximal policy optimization with tokens as actions and a value head.

The center samples completions y_r of each example, which are graded. Rewards are standardized over
the batch, and the reward of a completion is that of its last token. With the hidden state h_t that
predicts token t, the value head V_t = v . (h_t / |h_t|, 1), and V = 0 after the last token,

    (1)  delta_t = reward_t + gamma V_{t+1} - V_t
    (2)  A_t = delta_t + gamma lambda A_{t+1}          generalized advantage estimation
    (3)  theta: ascent of mean_t min(q_t A_t, clip(q_t, 1 - c, 1 + c) A_t),  q_t = p_theta / p_old
    (4)  v: descent of mean_t (V_t - G_t)^2 / 2, by Adam,    G_t = A_t + V_t of the sampling center

with advantages standardized over the tokens of the batch in (3), and p_old the probabilities of the
center that sampled, at the sampling temperature. Each minibatch of each epoch takes one step of
`strategy.optimizer`. Sources: Schulman et al. 2017 (arXiv 1707.06347) for (3), 2016 (arXiv
1506.02438) for (2); Huang et al. 2024 (arXiv 2403.17031) for language models.

Deviations: the trunk of the model is not trained by (4), so the value head is linear on what the
policy computes, starts at 0, and needs no second model. Its loss is not clipped, which was of no
help (Andrychowicz et al. 2021, arXiv 2006.05990). A divergence from the start model is part of the
reward (`task.kl_coef`), of the completion and not of its tokens.

The value head and its moments are in snapshots and digests (`Masters.method_state`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from germline.engines.inprocess import InProcessEngine
from germline.engines.master_weights import OF_METHOD, Masters
from germline.methods.policy_gradient import (
    SampledGradientMethod,
    TextRow,
    TokenOutputs,
    adapter_applied,
    adapter_parameters,
    token_outputs,
)
from germline.optimizers import Adam
from germline.shaping import all_equal
from germline.types import Update

VALUE_HEAD = f"{OF_METHOD}value_head"
"""Name of v in snapshots."""


@dataclass(frozen=True)
class PpoRow(TextRow):
    """A completion, and what equations (3) and (4) take of it, per token.

    Attributes:
        log_probs: under the center that sampled.
        advantages: standardized, of equation (3).
        returns: G_t of equation (4).
    """

    log_probs: Tensor
    advantages: Tensor
    returns: Tensor


class PpoMethod(SampledGradientMethod):
    """Proximal policy optimization, see the module."""

    def selected(
        self, rewards: Float[np.ndarray, "samples examples"]
    ) -> Bool[np.ndarray, "samples examples"]:
        """Select all samples with a reward; none if these are all equal."""
        known = np.isfinite(rewards)
        return known & (not all_equal(rewards[known].astype(np.float64)))

    def train(self, engine: InProcessEngine, update: Update) -> Mapping[str, Any]:
        """Take the steps of all epochs; return metrics."""
        if not self.rows:
            return {"backward_tokens": 0}
        head, section = ValueHead(engine.weights), self.section
        rows, metrics = self.rate(engine, head)
        changes: list[Tensor] = []
        clipped: list[Tensor] = []

        def gain(some: Sequence[PpoRow], outputs: list[TokenOutputs]) -> Tensor:
            log_probs = torch.cat([one.log_probs for one in outputs])
            change = log_probs - torch.cat([row.log_probs for row in some])
            advantages = torch.cat([row.advantages for row in some])
            gains, is_clipped = surrogate(change, advantages, section.clip)
            hidden = torch.cat([one.hidden for one in outputs])
            head.add_gradient(hidden, torch.cat([row.returns for row in some]))
            changes.append(change.detach())
            clipped.append(is_clipped)
            return gains.sum()

        for index, tokens in self.steps(engine, rows, update, gain):
            head.step(index, tokens, section.value_learning_rate)
        change = torch.cat(changes)
        return {
            **metrics,
            "clipped": float(torch.cat(clipped).float().mean()),
            "sampler_kl": float((torch.expm1(change) - change).mean()),
        }

    @torch.no_grad()
    def rate(
        self, engine: InProcessEngine, head: "ValueHead"
    ) -> tuple[list[PpoRow], dict[str, Any]]:
        """Return the rows with equations (1) and (2), and metrics."""
        section, rows, adapter = self.section, self.rows, adapter_parameters(engine)
        rewards = np.array([row.reward for row in rows], dtype=np.float64)
        rewards = (rewards - rewards.mean()) / rewards.std()
        log_probs: list[Tensor] = []
        values: list[Tensor] = []
        for start in range(0, len(rows), section.rows):
            some = rows[start : start + section.rows]
            with adapter_applied(engine, adapter):
                outputs = token_outputs(engine, some, section.temperature)
            log_probs += [one.log_probs for one in outputs]
            values += [head.values(head_features(one.hidden)) for one in outputs]
        advantages = [
            generalized_advantages(value, float(reward), section.gamma, section.gae_lambda)
            for value, reward in zip(values, rewards, strict=True)
        ]
        every, value = torch.cat(advantages), torch.cat(values)
        mean, std = every.mean(), every.std(correction=0) + 1e-8
        rated = [
            PpoRow(row.example, row.completion, before, (gain - mean) / std, gain + own)
            for row, before, gain, own in zip(rows, log_probs, advantages, values, strict=True)
        ]
        read = sum(row.completion.length for row in rows)
        return rated, {
            "forward_tokens": read,
            "backward_tokens": section.epochs * read,
            "entropy": -float(torch.cat(log_probs).mean()),
            "explained_variance": 1 - float(every.var() / (every + value).var()),
        }


class ValueHead:
    """Predicts returns from hidden states; its numbers and moments are in `method_state`."""

    def __init__(self, weights: Masters) -> None:
        self._adam = Adam()
        self._adam.state = self._state = weights.method_state
        self._gradient: Tensor | float = 0.0

    def values(self, features: Float[Tensor, "tokens features"]) -> Float[Tensor, " tokens"]:
        """Return V of tokens, whose features `head_features` returns."""
        return features @ self._weight(features)

    def add_gradient(
        self, hidden: Float[Tensor, "tokens width"], returns: Float[Tensor, " tokens"]
    ) -> None:
        """Add what some of the tokens of a minibatch contribute to the descent of equation (4)."""
        features = head_features(hidden)
        self._gradient = self._gradient + (returns - self.values(features)) @ features

    def step(self, step_index: int, tokens: int, learning_rate: float) -> None:
        """Take a step along the gradient, a mean over the tokens."""
        assert isinstance(self._gradient, Tensor)
        gradient, self._gradient = self._gradient / tokens, 0.0
        self._adam.step(VALUE_HEAD, self._weight(gradient), gradient, learning_rate, step_index)

    def _weight(self, like: Tensor) -> Tensor:
        """Return v, on the device of a tensor with as many columns; zeros at first."""
        kept = self._state.get(VALUE_HEAD)
        kept = like.new_zeros(like.shape[-1]) if kept is None else kept.to(like.device)
        self._state[VALUE_HEAD] = kept
        return kept


def head_features(hidden: Float[Tensor, "tokens width"]) -> Float[Tensor, "tokens features"]:
    """Return (h / |h|, 1) of each token, in fp32."""
    unit = nn.functional.normalize(hidden.float(), dim=-1)
    return nn.functional.pad(unit, (0, 1), value=1.0)


def generalized_advantages(
    values: Float[Tensor, " tokens"], reward: float, gamma: float, gae_lambda: float
) -> Float[Tensor, " tokens"]:
    """Return the advantages of the tokens of a completion: equation (2)."""
    after = torch.cat([values[1:], values.new_zeros(1)])
    deltas = gamma * after - values
    deltas[-1] += reward
    advantages = deltas.tolist()
    for token in range(len(advantages) - 2, -1, -1):
        advantages[token] += gamma * gae_lambda * advantages[token + 1]
    return torch.tensor(advantages, dtype=values.dtype, device=values.device)


def surrogate(
    log_ratios: Float[Tensor, " tokens"], advantages: Float[Tensor, " tokens"], clip: float
) -> tuple[Float[Tensor, " tokens"], Bool[Tensor, " tokens"]]:
    """Return equation (3) of each token, and whether it is clipped: its derivative is then 0."""
    ratios = log_ratios.exp()
    bounded = ratios.clamp(1 - clip, 1 + clip)
    plain, limited = ratios * advantages, bounded * advantages
    return torch.minimum(plain, limited), limited.detach() < plain.detach()
