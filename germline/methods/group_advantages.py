"""Advantages of samples in groups, one group for each example, and which samples are scored."""

import math

import numpy as np
from jaxtyping import Bool, Float, Float64

from germline.shaping import all_equal


def group_advantages(
    rewards: Float[np.ndarray, "samples examples"], scale: str
) -> Float64[np.ndarray, "samples examples"]:
    """Return rewards minus the mean of their example, divided by a standard deviation.

    An advantage is 0 where the reward is missing (NaN), and where the rewards of an example tie.

    Args:
        rewards: of the center's samples.
        scale: `group`: the standard deviation of the example; `batch`: of all rewards; `none`.
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


def mean_rewards(
    rewards: Float[np.ndarray, "samples examples"],
) -> Float64[np.ndarray, " samples"]:
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
        groups: number of groups.
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
