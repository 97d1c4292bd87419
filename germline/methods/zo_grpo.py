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
(`group_advantages.draw_rows`).

`strategy.learning_rate=auto` chooses the length of a step by the change of log-probabilities that
the members predict for it (`step_length`).

Deviations from GRPO: one update for each batch of rollouts, so no ratio is clipped; a completion
counts by the sum of its log-probabilities, not their mean; and samples at a temperature other than
1 are scored at 1. A penalty of the divergence from the start model is `task.kl_coef`, part of the
reward.

In an episode of several turns only the center plays; (2) is the sum over the tokens of all turns of
the model, each after what came before it.

Limits: strategies and spaces whose members are seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from germline import noise
from germline.config import AutoLearningRate, Config, Nes, ZerothOrderGrpo
from germline.config.methods import LEAST_EXAMPLES
from germline.episodes import model_turns
from germline.methods.group_advantages import draw_rows, group_advantages, mean_rewards
from germline.methods.method import Evaluated, Learned, Method, evaluate_again
from germline.methods.step_length import StepLength, TokenSlopes
from germline.protocols import Fleet, Members, ScoringGroup, Shaping, Strategy, Task
from germline.shaping import fitness
from germline.signal_metrics import signal_power
from germline.strategies.nes import NaturalEvolution
from germline.types import (
    Completion,
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


@dataclass(frozen=True)
class ScoredRow:
    """A sample of the center that members score.

    Attributes:
        number: of the sample, `examples x samples`.
        place: of its example in the batch.
        texts: what the model wrote, each after what came before it; several in an episode.
        weight: its advantage, divided by the probability with which it was drawn.
    """

    number: int
    place: int
    texts: Sequence[tuple[Example, Completion]]
    weight: float


@dataclass(frozen=True)
class GroupScores:
    """What the members of a group scored.

    Attributes:
        members: the group, as a part of the population.
        log_ratios: of the probabilities of every token, of a member to the center, or to the
            geometric mean of its pair.
        weights: of the row of every token.
        places: of the example of every token, in the batch.
    """

    members: slice
    log_ratios: Float64[np.ndarray, "members tokens"]
    weights: Float64[np.ndarray, " tokens"]
    places: Int64[np.ndarray, " tokens"]


@dataclass(frozen=True, kw_only=True)
class ScoredEvaluation(Evaluated):
    """The samples of the center, and how members score some of them.

    Attributes:
        slopes: change of the log-probability of every scored token along every direction.
        log_prob_power: mean square of the log-probabilities of the scored tokens.
        metrics: of the generation, by their names in generations.jsonl.
    """

    slopes: Sequence[TokenSlopes]
    log_prob_power: float
    metrics: dict[str, Any]


class ZerothOrderGrpoMethod(Method):
    """The center samples and the members score, see the module."""

    def __init__(self, config: Config) -> None:
        assert isinstance(config.method, ZerothOrderGrpo)
        self.section = config.method
        self.run_seed = config.seed
        rate = config.strategy.learning_rate if isinstance(config.strategy, Nes) else None
        self.has_measured_rate = isinstance(rate, AutoLearningRate)
        self.step_length = StepLength(config.method.relative_step)

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> None:
        """Continue with the step lengths of a stopped run."""
        self.step_length.recall(updates)

    def check_task(self, task: Task) -> None:
        """Refuse environments that ask for replies themselves.

        Raises:
            GermlineError: the task has such an environment.
        """
        if getattr(task, "client", "direct") == "http":
            raise GermlineError(
                "method.kind=zo_grpo scores conversations, and with task.client=http the "
                "environment does not tell which messages belong to one: use task.client=direct or "
                "method.kind=es"
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
        groups, share = self._drawn(samples, weights, population, batch)
        scored, center = self._scores(fleet, population, groups)
        known = np.concatenate([[], *center.values()])
        members = np.zeros((len(population), len(batch)))
        for one in scored:
            members[one.members] = example_scores(one, len(batch))
        return ScoredEvaluation(
            rollouts=samples,
            members=Evaluation(members, samples.rollouts, samples.tokens, samples.decode_seconds),
            slopes=[token_slopes(population, one, members) for one in scored],
            share=share,
            log_prob_power=float(np.mean(known**2)) if known.size else 0.0,
            metrics={
                "best_member": None,  # fitness is that of samples
                "rows_scored": len(center),
                "tokens_scored": known.size + sum(one.log_ratios.size for one in scored),
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
        """Weight every direction by equation (3), and choose the length of the step."""
        assert isinstance(evaluated, ScoredEvaluation)
        members = evaluated.members
        fit = fitness(members.rewards)
        utilities = shape(members, antithetic=population.antithetic)
        power = signal_power(population, members, shape, evaluated.share)
        update = strategy.tell(population, utilities, fit, None, power)
        assert isinstance(update, Update)
        metrics = dict(evaluated.metrics)
        if self.has_measured_rate:
            assert isinstance(strategy, NaturalEvolution)
            assert strategy.signal_rate is not None
            update, metrics["step_kl"] = self.step_length.of(
                update, evaluated.slopes, evaluated.log_prob_power, strategy.signal_rate.share
            )
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
        population: Population,
        batch: Sequence[Example],
    ) -> tuple[list[list[ScoredRow]], float]:
        """Draw the rows that each group of members scores, those of an example side by side."""
        count, examples = weights.shape
        uniform = noise.sampling_uniforms(
            self.run_seed, population.generation, "scored rows", (0,), 1
        )
        groups = max(1, len(population) // MEMBERS_OF_GROUP)
        signal = int(weights.any(axis=0).sum())
        drawn, share = draw_rows(
            weights.T.ravel(),
            self.section.rows_per_member,
            LEAST_EXAMPLES / max(1, signal),
            groups,
            float(uniform[0, 0]),
        )
        texts: dict[int, list[tuple[Example, Completion]]] = {}
        for row in {row for one in drawn for row in one}:
            place, sample = divmod(row, count)
            turns = model_turns(batch[place], samples.rollouts[sample * examples + place])
            texts[row] = [turn for turn in turns if turn[1].tokens]
        return [
            [ScoredRow(row, row // count, texts[row], weight) for row, weight in one.items()]
            for one in drawn
        ], share

    def _scores(
        self, fleet: Fleet, population: Population, groups: Sequence[Sequence[ScoredRow]]
    ) -> tuple[list[GroupScores], dict[int, Float64[np.ndarray, " tokens"]]]:
        """Let each group of members score its rows, and the center score all of them."""
        every = {row.number: row for rows in groups for row in rows}
        if not every:
            return [], {}
        parts = even_parts(population, len(groups))
        asked = [
            _group(population.members[part], rows) for part, rows in zip(parts, groups, strict=True)
        ]
        scores = fleet.score([*asked, _group((None,), [*every.values()])])
        texts = iter(scores[-1])
        center = {
            number: np.concatenate([next(texts) for _ in row.texts])
            for number, row in every.items()
        }
        return [
            group_scores(population, part, rows, scores[part], center)
            for part, rows in zip(parts, groups, strict=True)
        ], center


def _group(members: Members, rows: Sequence[ScoredRow]) -> ScoringGroup:
    texts = [text for row in rows for text in row.texts]
    return ScoringGroup(members, [asked for asked, _ in texts], [written for _, written in texts])


def even_parts(population: Population, count: int) -> list[slice]:
    """Cut a population into parts of about the same size, pairs into none."""
    of_direction = 2 if population.antithetic else 1
    ends = np.linspace(0, len(population) // of_direction, count + 1).astype(int) * of_direction
    return [slice(int(begin), int(end)) for begin, end in pairwise(ends)]


def group_scores(
    population: Population,
    members: slice,
    rows: Sequence[ScoredRow],
    scores: Sequence[Sequence[Sequence[float]]],
    center: Mapping[int, Float64[np.ndarray, " tokens"]],
) -> GroupScores:
    """Compare members with the center, and those of a pair with their mean.

    Args:
        population: of which the group is a part.
        members: the group.
        rows: that it scored.
        scores: log-probabilities, `[members][texts][tokens]`.
        center: log-probabilities of every row, by its number.
    """
    ratios = np.array([np.concatenate(texts) for texts in scores])
    ratios -= np.concatenate([center[row.number] for row in rows])
    if population.antithetic:
        ratios -= ratios.reshape(-1, 2, ratios.shape[1]).mean(axis=1).repeat(2, axis=0)
    sizes = [len(center[row.number]) for row in rows]
    weights = np.repeat([row.weight for row in rows], sizes)
    return GroupScores(members, ratios, weights, np.repeat([row.place for row in rows], sizes))


def example_scores(scored: GroupScores, examples: int) -> Float64[np.ndarray, "members examples"]:
    """Return what each example adds to equation (2) of each member.

    A member without a finite log-probability has NaN.
    """
    found = np.zeros((len(scored.log_ratios), examples))
    weighted = scored.log_ratios * scored.weights
    for place in np.unique(scored.places):
        found[:, place] = weighted[:, scored.places == place].sum(axis=1)
    found[~np.isfinite(scored.log_ratios).all(axis=1)] = np.nan
    return found


def token_slopes(
    population: Population, scored: GroupScores, members: Float64[np.ndarray, "members examples"]
) -> TokenSlopes:
    """Return the change of tokens along sigma times each direction of a group.

    Directions whose members have no finite log-probability have 0.
    """
    of_direction = 2 if population.antithetic else 1  # the second of a pair is the first negated
    slopes = scored.log_ratios[::of_direction]
    return TokenSlopes(
        slice(scored.members.start // of_direction, scored.members.stop // of_direction),
        np.where(np.isfinite(slopes).all(axis=1, keepdims=True), slopes, 0.0),
        scored.places,
        np.nan_to_num(members[scored.members][::of_direction]),
    )
