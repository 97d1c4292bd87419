"""Samples of the center: their advantages, which are scored, and what they count for later.

The samples of an example are a group. GRPO's objective of a token that was sampled with the
probability p_0, with the advantage A, is

    (1)  min(rho A, clip(rho, 1 - clip, 1 + clip) A)      rho = p / p_0

Its derivative is rho A d log p, and 0 where the minimum is the clipped one: a token then has gone
far enough (Schulman et al. 2017, arXiv 1707.06347). At the weights that sampled, rho is 1.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64

from germline.episodes import model_turns
from germline.fleet import Fleet
from germline.protocols import Members, ScoringGroup
from germline.shaping import all_equal
from germline.types import Completion, Evaluation, Example

LogProbs = Mapping[int, Float64[np.ndarray, " tokens"]]


@dataclass(frozen=True)
class SampledRow:
    """A sample of the center with an advantage.

    Attributes:
        number: of the sample, `examples x samples`.
        place: of its example in the batch.
        texts: what the model wrote, each after what came before it; several in an episode.
    """

    number: int
    place: int
    texts: Sequence[tuple[Example, Completion]]
    advantage: float


@dataclass(frozen=True)
class SampledBatch:
    """What the center sampled.

    Attributes:
        rows: the samples with an advantage, those of an example side by side.
        log_probs: of the tokens of every row under the center that sampled them, by its number;
            empty where one update uses them.
    """

    samples: Evaluation
    advantages: Float64[np.ndarray, "samples examples"]
    rows: Sequence[SampledRow]
    log_probs: LogProbs

    def log_ratios(self, center: LogProbs) -> LogProbs:
        """Return the logarithms of rho of equation (1), given log-probabilities of some rows."""
        if not self.log_probs:
            return {number: np.zeros(len(now)) for number, now in center.items()}
        return {number: now - self.log_probs[number] for number, now in center.items()}


def rows_with_advantage(
    samples: Evaluation,
    advantages: Float64[np.ndarray, "samples examples"],
    batch: Sequence[Example],
    *,
    mask_truncated: bool,
) -> list[SampledRow]:
    """Return the samples with an advantage, and with tokens that are not masked."""
    count, examples = advantages.shape
    rows = []
    for number in np.flatnonzero(advantages.T):
        place, sample = divmod(int(number), count)
        rollout = samples.rollouts[sample * examples + place]
        masked = mask_truncated and rollout.completion.finish == "length"
        if rollout.completion.tokens and not masked:
            texts = [turn for turn in model_turns(batch[place], rollout) if turn[1].tokens]
            rows.append(SampledRow(int(number), place, texts, float(advantages[sample, place])))
    return rows


def scoring_group(members: Members, rows: Collection[SampledRow]) -> ScoringGroup:
    """Return what members read to score rows."""
    texts = [text for row in rows for text in row.texts]
    return ScoringGroup(members, [asked for asked, _ in texts], [written for _, written in texts])


def row_log_probs(scores: Sequence[Sequence[float]], rows: Collection[SampledRow]) -> LogProbs:
    """Join the log-probabilities of the texts of each row."""
    texts = iter(scores)
    return {row.number: np.concatenate([next(texts) for _ in row.texts]) for row in rows}


def center_log_probs(fleet: Fleet, rows: Collection[SampledRow]) -> LogProbs:
    """Let the center score rows."""
    return row_log_probs(fleet.score([scoring_group((None,), rows)])[0], rows) if rows else {}


def clipped_ratios(
    log_ratios: Float64[np.ndarray, " tokens"], advantage: float, clip: float | None
) -> Float64[np.ndarray, " tokens"]:
    """Return the weight of A d log p in the derivative of equation (1); without clip, rho."""
    ratios: Float64[np.ndarray, " tokens"] = np.exp(log_ratios)
    if clip is None:
        return ratios
    is_far = ratios > 1 + clip if advantage > 0 else ratios < 1 - clip
    return np.where(is_far, 0.0, ratios)


def ratio_metrics(log_ratios: LogProbs, counts: LogProbs) -> dict[str, float]:
    """Return the share of tokens that do not count, and the KL divergence from the sampler."""
    changes = np.concatenate([*log_ratios.values()])
    return {
        "clipped": float(np.mean(np.concatenate([*counts.values()]) == 0)),
        "sampler_kl": float(np.mean(np.expm1(changes) - changes)),
    }


def group_advantages(
    rewards: Float[np.ndarray, "samples examples"], scale: str
) -> Float64[np.ndarray, "samples examples"]:
    """Return rewards minus the mean of their example, divided by a standard deviation.

    `scale` names it: that of the example (`group`), of all rewards (`batch`), or `none`. An
    advantage is 0 where the reward is missing (NaN), and where the rewards of an example tie.
    """
    known = np.isfinite(rewards)
    advantages = np.zeros(rewards.shape)
    if scale == "batch":
        rewards = scaled(rewards, known)
    for place in range(rewards.shape[1]):
        group = rewards[known[:, place], place].astype(np.float64)
        if all_equal(group):
            continue
        if scale == "group":
            group /= np.abs(group).max()  # squares of tiny or huge values leave float64
            group /= group.std(ddof=1)
        advantages[known[:, place], place] = group - group.mean()
    if scale == "batch" and advantages.any():
        advantages /= rewards[known].astype(np.float64).std(ddof=1)
    return advantages


def scaled(
    values: Float[np.ndarray, "..."], known: Bool[np.ndarray, "..."]
) -> Float64[np.ndarray, "..."]:
    """Return values times the power of 2 for which the largest known one is between 1/2 and 1.

    It changes no digit, and squares of huge or tiny values do not leave float64.
    """
    largest = np.abs(values).max(where=known, initial=0.0)
    return np.asarray(np.ldexp(values.astype(np.float64), -np.frexp(largest)[1]))


def mean_rewards(rewards: Float[np.ndarray, "samples examples"]) -> Float64[np.ndarray, " samples"]:
    """Return the mean of the known rewards of each sample; NaN where none is known."""
    means = np.ma.masked_invalid(rewards.astype(np.float64)).mean(axis=1)
    return np.asarray(np.ma.filled(means, np.nan))


def draw_rows(
    weights: Float64[np.ndarray, " rows"],
    count: int,
    least_share: float,
    groups: int,
    uniform: float,
) -> tuple[list[dict[int, float]], float]:
    """Draw the rows of each group in proportion to |weight|, from neighboring rows.

    The intervals of length |weight|, one after another, form a circle. Each group has an arc of it,
    long enough for about `count` rows; the arcs begin at equal distances, the first at `uniform`
    times the circle. `count` points at equal distances on the arc hit the rows of the group; where
    arcs overlap, their points alternate. A row that is hit n times weighs n times the circle /
    `count`, with the sign of its weight. So the expectation of a weighted sum is that of all rows,
    and together the groups cover all of them. If no more than `count` rows have a weight, all
    groups have them all, with the weight that they have.

    Returns the weights of each group's rows, by row, and the length of an arc.

    Args:
        weights: of all rows.
        count: of rows of a group, at most.
        least_share: least length of an arc, as a share of the circle.
        groups: their number.
        uniform: random, between 0 and 1.
    """
    used = np.flatnonzero(weights)
    if len(used) <= count:
        return [{int(row): float(weights[row]) for row in used}] * groups, 1.0
    ends = np.cumsum(np.abs(weights[used]))
    ends /= ends[-1]
    total = float(np.abs(weights[used]).sum())
    share = min(1.0, max(count / len(used), least_share, 1 / groups))
    overlap = math.ceil(share * groups - 1e-9)
    drawn = []
    for group in range(groups):
        phase = group % overlap / overlap
        points = (uniform + group / groups + (np.arange(count) + phase) / count * share) % 1.0
        hit = np.minimum(np.searchsorted(ends, points, side="right"), len(used) - 1)
        hits = np.bincount(hit, minlength=len(used))
        drawn.append(
            {
                int(row): float(np.sign(weights[row]) * n * total / count)
                for row, n in zip(used, hits, strict=True)
                if n
            }
        )
    return drawn, share
