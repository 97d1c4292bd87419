"""Advantages of samples in groups, one group for each example, and which samples are used."""

import numpy as np
from jaxtyping import Float, Float64

from germline.shaping.ties import all_equal


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


def mean_rewards(
    rewards: Float[np.ndarray, "samples examples"],
) -> Float64[np.ndarray, " samples"]:
    """Return the mean of the known rewards of each sample; NaN where none is known."""
    means = np.ma.masked_invalid(rewards.astype(np.float64)).mean(axis=1)
    return np.asarray(np.ma.filled(means, np.nan))


def draw_rows(
    weights: Float64[np.ndarray, " rows"], count: int, uniform: float
) -> dict[int, float]:
    """Draw rows in proportion to |weight|; return what each drawn row weighs.

    Systematic sampling: `count` points at equal distances on the cumulative sum of |weight|, the
    first at `uniform` times the distance. A row that is hit n times weighs n times the distance,
    with the sign of its weight, so the expectation of a weighted sum is that of all rows. If no
    more than `count` rows have a weight, all are drawn with the weight that they have.
    """
    used = np.flatnonzero(weights)
    if len(used) <= count:
        return {int(row): float(weights[row]) for row in used}
    ends = np.cumsum(np.abs(weights[used]))
    distance = ends[-1] / count
    points = (np.arange(count) + uniform) * distance
    hit = np.minimum(np.searchsorted(ends, points, side="right"), len(used) - 1)
    hits = np.bincount(hit, minlength=len(used))
    return {
        int(row): float(np.sign(weights[row]) * n * distance)
        for row, n in zip(used, hits, strict=True)
        if n
    }
