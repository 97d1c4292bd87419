"""Zeroth-order GRPO: the center samples completions, and the members score them.

In an evolution strategy each member pays for its direction with rollouts of its own. Here the
center samples G completions y_r of each example, which are graded once, and members theta + sigma
eps_k read these completions instead of generating:

    (1)  A_r = R_r - mean of the example's rewards        divided by a standard deviation, by choice
    (2)  F_k = 1/n sum_r w_r A_r sum_t log p_k(y_rt)      n examples, all tokens of a completion
    (3)  c_k = (F_k+ - F_k-) / 2                          of an antithetic pair

(3) is, up to the order of sigma^2, sigma times the derivative along eps_k of the policy gradient
objective of GRPO (Shao et al. 2024, arXiv 2402.03300) at the weights that sampled, where all ratios
are 1. It has no reward noise between members. Only forward passes are needed, and the journal holds
seeds and coefficients as ever.

Members score `rows_per_pair` completions, drawn in proportion to |A_r| by systematic sampling; w_r
is 1 / the expected number of draws of r, so the expectation of (2) is that of all completions.

The same log-probabilities say how far an update moves the center. With the derivative d_kt = (log
p_k+ - log p_k-) / 2 of every scored token, an update sigma * s * sum_k c_k eps_k changes log p_t by
s sum_k c_k d_kt to first order, and

    (4)  KL = s^2 / 2 mean_t (sum_k c_k^(-j) d_kt)^2      nats per token

where c^(-j) leaves out example j, to which the token belongs: an update changes the tokens that it
was computed from more than others, and `step_kl` is about all that the model writes. (4) is taken
to be at least that of random coefficients of the same length, as it is a poor estimate from few
tokens or directions, and no step is longer than 2 sigmas.

`strategy.learning_rate=auto` chooses s so that (4) is `step_kl` times the share of signal r that
the jackknife over examples measures (`signal_metrics`, equation 8): other rollouts of other
examples would give this share of the power of the coefficients again.

Deviations from GRPO: one update for each batch of rollouts, so no ratio is clipped; a completion
counts by the sum of its log-probabilities, not their mean; and samples at a temperature other than
1 are scored at 1. A penalty of the divergence from the start model is `task.kl_coef`, part of the
reward.

Limits: single completions; strategies and spaces whose members are seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from germline import noise
from germline.config import AutoLearningRate, Config, Nes, ZerothOrderGrpo
from germline.methods.group_advantages import draw_rows, group_advantages, mean_rewards
from germline.methods.method import Evaluated, Learned, Method, evaluate_again
from germline.protocols import EpisodeTask, Fleet, Shaping, Strategy, Task
from germline.shaping import fitness
from germline.signal_metrics import signal_power
from germline.strategies.nes import NaturalEvolution
from germline.types import (
    Decoding,
    Evaluation,
    Example,
    GermlineError,
    Population,
    Rollout,
    Update,
)

LEAST_SHARE = 0.05
"""The share of signal below which the step is not shortened: the jackknife cannot tell such a share
from 0, and a run without a step would never learn from it."""

LONGEST_STEP = 2.0
"""Longest step, in sigmas: members probe to one sigma, and (4) is of first order."""


@dataclass(frozen=True)
class ScoredRow:
    """A sample of the center that the members score.

    Attributes:
        place: of its example in the batch.
        weight: its advantage, divided by the probability with which it was drawn.
    """

    rollout: Rollout
    place: int
    weight: float


@dataclass(frozen=True, kw_only=True)
class ScoredEvaluation(Evaluated):
    """The samples of the center, and how members score some of them.

    Attributes:
        slopes: change of the log-probability of every scored token along every direction.
        places: of the example of every scored token, in the batch.
        metrics: of the generation, by their names in generations.jsonl.
    """

    slopes: Float64[np.ndarray, "directions tokens"]
    places: Int64[np.ndarray, " tokens"]
    metrics: dict[str, Any]


class ZerothOrderGrpoMethod(Method):
    """The center samples and the members score, see the module."""

    def __init__(self, config: Config) -> None:
        assert isinstance(config.method, ZerothOrderGrpo)
        self.section = config.method
        self.run_seed = config.seed
        self.task_kind = config.task.kind
        rate = config.strategy.learning_rate if isinstance(config.strategy, Nes) else None
        self.has_measured_rate = isinstance(rate, AutoLearningRate)

    def check_task(self, task: Task) -> None:
        """Refuse a task of episodes.

        Raises:
            GermlineError: the task has episodes.
        """
        if isinstance(task, EpisodeTask):
            raise GermlineError(
                "method.kind=zo_grpo scores single completions, and "
                f"task.kind={self.task_kind} has episodes of several turns: use method.kind=es"
            )

    def evaluate(
        self,
        strategy: Strategy,
        fleet: Fleet,
        population: Population,
        batch: Sequence[Example],
        decoding: Decoding,
    ) -> ScoredEvaluation:
        """Let the center sample, and the members score: equations (1) and (2).

        Raises:
            GermlineError: too many rewards are missing, twice in a row.
        """
        section = self.section
        sampling = replace(decoding, temperature=section.temperature)
        samples = evaluate_again(
            lambda: fleet.evaluate_center(batch, sampling, section.group_size),
            population.generation,
        )
        advantages = group_advantages(samples.rewards, section.scale_rewards)
        weights = self._weights(samples, advantages)
        rows = self._drawn(samples, weights, population.generation)
        tokens = self._scores(fleet, population, batch, rows)
        totals = np.array([[math.fsum(row) for row in member] for member in tokens])
        members = compared_members(population, rows, totals, len(batch))
        flat = np.array([[value for row in member for value in row] for member in tokens])
        known = flat[-1] if rows else np.array([])
        return ScoredEvaluation(
            rollouts=samples,
            members=Evaluation(members, samples.rollouts, samples.tokens, samples.decode_seconds),
            slopes=direction_slopes(population, flat),
            places=np.repeat([row.place for row in rows], [*map(len, tokens[-1])]).astype(int),
            metrics={
                "best_member": None,  # fitness is that of samples
                "rows_scored": len(rows),
                "tokens_scored": known.size * len(tokens),
                "groups_without_signal": float(np.mean(~weights.any(axis=0))),
                "advantage_std": float(advantages.std()),
                "entropy": float(-known.mean()) if known.size else None,
                "truncated": float(
                    np.mean([one.completion.finish == "length" for one in samples.rollouts])
                ),
            },
        )

    def learn(
        self, strategy: Strategy, shape: Shaping, population: Population, evaluated: Evaluated
    ) -> Learned:
        """Weight every direction by equation (3), and choose the length of the step by (4)."""
        assert isinstance(evaluated, ScoredEvaluation)
        members = evaluated.members
        fit = fitness(members.rewards)
        utilities = shape(members, antithetic=population.antithetic)
        power = signal_power(population, members, shape)
        update = strategy.tell(population, utilities, fit, None, power)
        assert isinstance(update, Update)
        metrics = dict(evaluated.metrics)
        if self.has_measured_rate:
            assert isinstance(strategy, NaturalEvolution)
            assert strategy.signal_rate is not None
            share = max(strategy.signal_rate.share, LEAST_SHARE)
            kl = self.section.step_kl * share
            parts = direction_parts(population, members.rewards)
            change = change_without_own_part(
                np.asarray(update.coefficients), parts, evaluated.slopes, evaluated.places
            )
            rate = rate_of_kl(update, change, evaluated.slopes, kl)
            metrics["step_kl"] = kl if rate else 0.0
            update = replace(update, learning_rate=rate)
        return Learned(
            fitness=fit,
            mean_rewards=mean_rewards(evaluated.rollouts.rewards),
            utilities=utilities,
            update=update,
            power=power,
            metrics=metrics,
        )

    def _weights(
        self, samples: Evaluation, advantages: Float64[np.ndarray, "samples examples"]
    ) -> Float64[np.ndarray, "samples examples"]:
        """Return the advantages, 0 where a completion has no tokens or is masked."""
        masked = self.section.mask_truncated_completions
        used = [
            bool(one.completion.tokens) and not (masked and one.completion.finish == "length")
            for one in samples.rollouts
        ]
        return np.where(np.reshape(used, advantages.shape), advantages, 0.0)

    def _drawn(
        self,
        samples: Evaluation,
        weights: Float64[np.ndarray, "samples examples"],
        generation: int,
    ) -> list[ScoredRow]:
        """Draw the rows that members score, those of an example next to each other."""
        by_example = weights.T.ravel()
        uniform = noise.sampling_uniforms(self.run_seed, generation, "scored rows", (0,), 1)
        drawn = draw_rows(by_example, self.section.rows_per_pair, float(uniform[0, 0]))
        examples = weights.shape[1]
        return [
            ScoredRow(
                samples.rollouts[(row % len(weights)) * examples + row // len(weights)],
                row // len(weights),
                weight,
            )
            for row, weight in drawn.items()
        ]

    def _scores(
        self,
        fleet: Fleet,
        population: Population,
        batch: Sequence[Example],
        rows: Sequence[ScoredRow],
    ) -> list[list[Sequence[float]]]:
        """Return the log-probabilities of members and center, `[scorers][rows][tokens]`."""
        members = [*population.members, None]
        if not rows:
            return [[] for _ in members]
        examples = [batch[row.place] for row in rows]
        return fleet.score(members, examples, [row.rollout.completion for row in rows])


def compared_members(
    population: Population,
    rows: Sequence[ScoredRow],
    totals: Float64[np.ndarray, "scorers rows"],
    examples: int,
) -> Float64[np.ndarray, "members examples"]:
    """Return what each example adds to equation (2) of each member, less that of its pair's mean.

    Where members are no pairs, that of the center is subtracted. A member without a finite
    log-probability has NaN.

    Args:
        population: the members.
        rows: that were scored.
        totals: sums of log-probabilities; the last row is the center's.
        examples: in the batch.
    """
    objective = np.zeros((len(population) + 1, examples))
    for number, row in enumerate(rows):
        objective[:, row.place] += row.weight * totals[:, number]
    objective[~np.isfinite(objective).all(axis=1)] = np.nan
    members, center = objective[:-1], objective[-1]
    if not population.antithetic:
        return members - center
    pairs = members.reshape(-1, 2, examples)
    return (pairs - pairs.mean(axis=1, keepdims=True)).reshape(members.shape)


def direction_slopes(
    population: Population, tokens: Float64[np.ndarray, "scorers tokens"]
) -> Float64[np.ndarray, "directions tokens"]:
    """Return the change of every token's log-probability along sigma times each direction.

    Directions whose members have no finite log-probability have 0.
    """
    members, center = tokens[:-1], tokens[-1]
    slopes = (members[0::2] - members[1::2]) / 2 if population.antithetic else members - center
    return np.where(np.isfinite(slopes).all(axis=1, keepdims=True), slopes, 0.0)


def direction_parts(
    population: Population, members: Float64[np.ndarray, "members examples"]
) -> Float64[np.ndarray, "directions examples"]:
    """Return what each example adds to equation (3); 0 for directions without a finite score."""
    parts = (members[0::2] - members[1::2]) / 2 if population.antithetic else members
    return np.nan_to_num(parts)


def change_without_own_part(
    coefficients: Float64[np.ndarray, " directions"],
    parts: Float64[np.ndarray, "directions examples"],
    slopes: Float64[np.ndarray, "directions tokens"],
    places: Int64[np.ndarray, " tokens"],
) -> Float64[np.ndarray, " tokens"]:
    """Return the change of each token's log-probability by the other examples, as in equation (4).

    Shaped coefficients are taken to be the sum of the parts times a factor, so the part of an
    example is a share of them. With one example, nothing can be left out.

    Args:
        coefficients: of the update.
        parts: what each example adds to them, before shaping.
        slopes: change of every token along every direction.
        places: of the example of every token.
    """
    change = coefficients @ slopes
    total = parts.sum(axis=1)
    scored = len(np.unique(places))
    if scored < 2 or not total.any():
        return change
    factor = (coefficients @ total) / (total @ total)
    own = np.einsum("kt,kt->t", parts[:, places], slopes)
    left: Float64[np.ndarray, " tokens"] = (change - factor * own) * scored / (scored - 1)
    return left


def rate_of_kl(
    update: Update,
    change: Float64[np.ndarray, " tokens"],
    slopes: Float64[np.ndarray, "directions tokens"],
    kl: float,
) -> float:
    """Return the learning rate at which the update has this divergence: equation (4).

    The divergence is taken to be at least that of random coefficients of the same length: from few
    tokens or directions, the change may be estimated to be near 0 by chance. The step is at most
    `LONGEST_STEP`, and 0 where no coefficient changes a log-probability.
    """
    if not change.size:
        return 0.0
    coefficients = np.asarray(update.coefficients)
    random = float(coefficients @ coefficients) * float(np.mean(slopes**2))
    power = max(float(np.mean(change**2)), random)
    if power == 0:
        return 0.0
    length = float(np.linalg.norm(coefficients))
    return update.sigma * min(math.sqrt(2 * kl / power), LONGEST_STEP / length)
