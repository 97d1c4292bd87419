"""Zeroth-order GRPO: the center samples completions, and the members score them.

In an evolution strategy each member pays for its direction with rollouts of its own. Here the
center samples G completions y_r of each example, which are graded once, and members theta + sigma
eps_k read these completions instead of generating:

    (1)  A_r = R_r - mean of the example's rewards        divided by a standard deviation, by choice
    (2)  F_k = 1/n sum_r w_r A_r sum_t log p_k(y_rt)      n examples, all tokens of a completion
    (3)  c_k = F_k - F_0                                  F_0 of the center

(3) is, up to the order of sigma^2, sigma times the derivative along eps_k of the policy gradient
objective of GRPO (Shao et al. 2024, arXiv 2402.03300) at the weights that sampled, where all ratios
are 1. It has no reward noise between members. Only forward passes are needed, and the journal holds
seeds and coefficients as ever. With `strategy.antithetic`, c_k is half the difference of a pair, up
to the order of sigma^3 for twice the members; by default members are no pairs, as F_0 is known.

Each group of 16 members scores other completions, `rows_per_member` of neighboring examples, drawn
in proportion to |A_r|; w_r is 1 / the expected number of draws of r, so the expectation of (2) is
that of all completions. Together the groups score most of them, while each member reads few prompts
(`sampled_batch.draw_rows`).

`strategy.learning_rate=auto` chooses the length of a step by the change of log-probabilities that
the members predict for it (`step_length`).

With `updates_per_batch`, the next generations learn from the same samples. Then each token counts
in (2) times the ratio of its probability under the center to that when it was sampled, or 0 where
the ratio has left 1 +- `clip` in the direction of A_r, which is the derivative of GRPO's objective.

Deviations from GRPO: a completion counts by the sum of its log-probabilities, not their mean; and
samples at a temperature other than 1 are scored at 1. By default the coefficient is not (3) but its
rank among the members (`shaping`), as groups that score other completions differ in scale. A
penalty of the divergence from the start model is `task.kl_coef`, part of the reward.

In an episode of several turns only the center plays; (2) is the sum over the tokens of all turns of
the model, each after what came before it.

Limits: strategies and spaces whose members are seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float64

from germline import noise
from germline.config import Config
from germline.config.methods import LEAST_EXAMPLES
from germline.fleet import Fleet
from germline.methods.method import Evaluated, Learned, Method
from germline.methods.sampled_batch import (
    LogProbs,
    SampledBatch,
    SampledRow,
    center_log_probs,
    clipped_ratios,
    draw_rows,
    group_advantages,
    mean_rewards,
    ratio_metrics,
    row_log_probs,
    rows_with_advantage,
    scoring_group,
)
from germline.methods.step_length import StepLength, TokenSlopes
from germline.protocols import Task
from germline.types import (
    Decoding,
    Evaluation,
    Example,
    GermlineError,
    MeanUpdate,
    Population,
    Update,
)

MEMBERS_OF_GROUP = 16
"""Members that score the same completions, in one batch."""


DrawnRows = Sequence[tuple[SampledRow, float]]
"""The rows that a group of members scores: an advantage / the probability of being drawn."""


@dataclass(frozen=True, kw_only=True)
class ScoredEvaluation(Evaluated):
    """The samples of the center, and how members score some of them.

    Attributes:
        log_prob_power: mean square of the log-probabilities of the scored tokens.
        metrics: of the generation, by their names in generations.jsonl.
    """

    slopes: Sequence[TokenSlopes]
    log_prob_power: float
    metrics: dict[str, Any]


class ZerothOrderGrpoMethod(Method):
    """The center samples and the members score, see the module."""

    sampled: SampledBatch | None = None

    @cached_property
    def step_length(self) -> StepLength:
        """Chooses the learning rates that are measured."""
        section = self.section
        return StepLength(
            section.relative_step,
            section.longest_relative_step,
            section.step_halved_after,
            section.weight_decay,
        )

    @cached_property
    def sampled_share(self) -> float:
        """The share of the training examples that is in a batch."""
        assert self.task is not None
        return min(1.0, self.config.batch_size / len(self.task.examples("train")))

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> Sequence[Update | MeanUpdate]:
        """Continue with the step lengths of a stopped run."""
        self.step_length.recall(updates)
        return super().recall(updates)

    @classmethod
    def check_task(cls, config: Config, task: Task) -> None:
        """Refuse environments that ask for replies themselves."""
        if getattr(task, "asks_endpoint", False):
            raise GermlineError(
                f"method.kind=zo_grpo scores conversations, and a task of kind {config.task.kind} "
                "does not tell which messages belong to one: use method.kind=es"
            )

    def sampled_at(self, generation: int) -> int:
        """Return the first generation that uses the samples."""
        return generation - generation % self.section.updates_per_batch

    def batch_generation(self, generation: int) -> int:
        """Return the number of the batch."""
        return generation // self.section.updates_per_batch

    def sample(self, fleet: Fleet, batch: Sequence[Example], decoding: Decoding) -> None:
        """Let the center sample, and compute equation (1)."""
        section = self.section
        samples = self.sample_center(
            fleet, batch, decoding, section.group_size, section.temperature
        )
        advantages = group_advantages(samples.rewards, section.scale_rewards)
        masked = section.mask_truncated_completions
        rows = rows_with_advantage(samples, advantages, batch, mask_truncated=masked)
        reused = section.updates_per_batch > 1
        log_probs = center_log_probs(fleet, rows) if reused else {}
        self.sampled = SampledBatch(samples, advantages, rows, log_probs)

    def evaluate(
        self, fleet: Fleet, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> ScoredEvaluation:
        """Let the center sample, and the members score: equations (1) and (2)."""
        is_first = population.generation == self.sampled_at(population.generation)
        if is_first:
            self.sample(fleet, batch, decoding)
        assert self.sampled is not None
        sampled, samples = self.sampled, self.sampled.samples
        groups, share = self._drawn(sampled.rows, population)
        members, slopes, center, far = self._scores(fleet, population, sampled, groups, len(batch))
        known = np.concatenate([[], *center.values()])
        of_direction = 2 if population.antithetic else 1
        with_signal = {row.place for row in sampled.rows}
        return ScoredEvaluation(
            rollouts=samples if is_first else Evaluation(samples.rewards, (), 0, 0.0),
            members=Evaluation(members, samples.rollouts, samples.tokens, samples.decode_seconds),
            slopes=slopes,
            share=share,
            log_prob_power=float(np.mean(known**2)) if known.size else 0.0,
            metrics={
                "best_member": None,  # fitness is that of samples
                "rows_scored": len(center),
                "tokens_scored": known.size + of_direction * sum(one.slopes.size for one in slopes),
                "groups_without_signal": 1 - len(with_signal) / len(batch),
                "advantage_std": float(sampled.advantages.std()),
                "entropy": float(-known.mean()) if known.size else None,
                "truncated": float(
                    np.mean([one.completion.finish == "length" for one in samples.rollouts])
                ),
                **far,
            },
        )

    def learn(self, population: Population, evaluated: Evaluated) -> Learned:
        """Weight every direction by equation (3), and choose the length of the step."""
        assert isinstance(evaluated, ScoredEvaluation)
        learned = super().learn(replace(population, baseline=None), evaluated)
        metrics = dict(evaluated.metrics)
        update = learned.update
        assert isinstance(update, Update)
        rewards = evaluated.rollouts.rewards
        if self.config.strategy.has_measured_rate:
            is_new = population.generation == self.sampled_at(population.generation)
            update, metrics["step_kl"] = self.step_length.of(
                update,
                evaluated.slopes,
                evaluated.log_prob_power,
                rewards if is_new else rewards[:0],
                self.sampled_share,
            )
        means = mean_rewards(rewards)
        return replace(learned, mean_rewards=means, update=update, metrics=metrics)

    def _drawn(
        self, rows: Sequence[SampledRow], population: Population
    ) -> tuple[list[DrawnRows], float]:
        """Draw the rows that each group of members scores, those of an example side by side."""
        uniform = noise.sampling_uniforms(
            self.run_seed, population.generation, "scored rows", (0,), 1
        )
        groups = max(1, len(population) // MEMBERS_OF_GROUP)
        drawn, share = draw_rows(
            np.array([row.advantage for row in rows]),
            self.section.rows_per_member,
            LEAST_EXAMPLES / max(1, len({row.place for row in rows})),
            groups,
            float(uniform[0, 0]),
        )
        return [[(rows[row], weight) for row, weight in one.items()] for one in drawn], share

    def _scores(
        self,
        fleet: Fleet,
        population: Population,
        sampled: SampledBatch,
        groups: Sequence[DrawnRows],
        examples: int,
    ) -> tuple[
        Float64[np.ndarray, "members examples"], list[TokenSlopes], LogProbs, dict[str, float]
    ]:
        """Let each group of members score its rows, and the center score all of them.

        Returns both values of `group_scores`, the scores of the center, and how far it is from the
        weights that sampled, where they differ.
        """
        every = {row.number: row for rows in groups for row, _ in rows}
        if not every:
            return np.zeros((len(population), examples)), [], {}, {}
        parts = even_parts(population, len(groups))
        asked = [
            scoring_group(population.members[part], [row for row, _ in rows])
            for part, rows in zip(parts, groups, strict=True)
        ]
        scores = fleet.score([*asked, scoring_group((None,), every.values())])
        center = row_log_probs(scores[-1], every.values())
        changes = sampled.log_ratios(center)
        counts = {
            number: clipped_ratios(change, every[number].advantage, self.section.clip)
            for number, change in changes.items()
        }
        members = np.zeros((len(population), examples))
        slopes = []
        for part, rows in zip(parts, groups, strict=True):
            members[part], of_group = group_scores(
                population, part, rows, scores[part], center, counts, examples
            )
            slopes.append(of_group)
        return members, slopes, center, ratio_metrics(changes, counts) if sampled.log_probs else {}


def even_parts(population: Population, count: int) -> list[slice]:
    """Cut a population into parts of about the same size, pairs into none."""
    of_direction = 2 if population.antithetic else 1
    ends = np.linspace(0, len(population) // of_direction, count + 1).astype(int) * of_direction
    return [slice(int(begin), int(end)) for begin, end in pairwise(ends)]


def group_scores(
    population: Population,
    members: slice,
    rows: DrawnRows,
    scores: Sequence[Sequence[Sequence[float]]],
    center: LogProbs,
    counts: LogProbs,
    examples: int,
) -> tuple[Float64[np.ndarray, "members examples"], TokenSlopes]:
    """Compare members with the center, and those of a pair with their mean.

    Returns what each example adds to equation (2) of each member, and the change of tokens along
    sigma times each direction; NaN and 0 of members without a finite log-probability.

    Args:
        population: of which `members` are a group.
        members: the group.
        rows: that it scored.
        scores: log-probabilities, `[members][texts][tokens]`.
        center: log-probabilities of the center, by the number of the row.
        counts: what each token counts, likewise.
        examples: of the batch.
    """
    ratios = np.array([np.concatenate(texts) for texts in scores])
    ratios -= np.concatenate([center[row.number] for row, _ in rows])
    if population.antithetic:
        ratios -= ratios.reshape(-1, 2, ratios.shape[1]).mean(axis=1).repeat(2, axis=0)
    weights = np.concatenate([weight * counts[row.number] for row, weight in rows])
    places = np.repeat([row.place for row, _ in rows], [len(counts[row.number]) for row, _ in rows])
    weighted = ratios * weights
    by_example = [weighted[:, places == place].sum(axis=1) for place in range(examples)]
    is_finite = np.isfinite(ratios).all(axis=1, keepdims=True)
    added = np.where(is_finite, np.stack(by_example, axis=1), np.nan)
    of_direction = 2 if population.antithetic else 1  # the second of a pair is the first negated
    slopes = TokenSlopes(
        slice(members.start // of_direction, members.stop // of_direction),
        np.where(is_finite, ratios, 0.0)[::of_direction],
        places,
        np.nan_to_num(added[::of_direction]),
    )
    return added, slopes
