"""Fitness is the mean reward over examples; missing rewards are estimated.

NaN marks a reward that an infrastructure failure lost; no computation uses it as a number. If some
rewards of a member are missing, its fitness is the member effect of an additive model, reward =
member + example, fitted by least squares to the observed rewards. So a member gains nothing when
the reward of a hard example is missing. A member without any reward has fitness NaN.
"""

import numpy as np
from jaxtyping import Bool, Float, Float64

from germline.shaping.ties import all_equal, exact_mean


def fitness(rewards: Float[np.ndarray, "members examples"]) -> Float64[np.ndarray, " members"]:
    """Reduce rewards to the mean over examples; NaN entries are missing data.

    The fitness of a complete member is its plain mean, even if rewards of other members are
    missing. A member without any reward gets NaN.

    Raises:
        ValueError: a reward is infinite, or there are no examples.
    """
    rewards = rewards.astype(np.float64)
    if rewards.shape[1] == 0:
        raise ValueError("rewards have no examples, so no member has a fitness; use batch >= 1")
    infinite = np.argwhere(np.isinf(rewards))
    if len(infinite):
        member, example = infinite[0]
        raise ValueError(
            f"reward of member {member} on example {example} is {rewards[member, example]}; "
            "a reward must be a finite number, or NaN where it is missing"
        )
    observed = ~np.isnan(rewards)
    values = np.full(len(rewards), np.nan)
    seen_examples = observed.any(axis=0)
    # An example without any observed reward is left out of the mean.
    complete = observed[:, seen_examples].all(axis=1) & seen_examples.any()
    for member in np.flatnonzero(complete):
        values[member] = exact_mean(rewards[member, seen_examples])
    partial = observed.any(axis=1) & ~complete
    if partial.any():
        values[partial] = _additive_fit(rewards, observed)[partial]
    return values


def per_example_deviations(
    rewards: Float[np.ndarray, "members examples"],
) -> Float64[np.ndarray, "members examples"]:
    """Divide every reward by the standard deviation of all members' rewards on the same example.

        r_ij / std_i(r_ij), and 0 where the rewards of all members tie

    The mean of the example is not subtracted: a constant added to all rewards of an example changes
    neither the additive fit nor the differences of fitness. NaN stays NaN.
    """
    scaled = np.where(np.isnan(rewards), np.nan, 0.0)
    for example in range(rewards.shape[1]):
        seen = ~np.isnan(rewards[:, example])
        group = rewards[seen, example].astype(np.float64)
        if all_equal(group):
            continue
        deviations = group - exact_mean(group)
        largest = np.max(np.abs(deviations))  # squares of tiny or huge values leave float64
        deviation = largest * np.sqrt(exact_mean((deviations / largest) ** 2))
        scaled[seen, example] = group / deviation
    return scaled


def _additive_fit(
    rewards: Float64[np.ndarray, "members examples"],
    observed: Bool[np.ndarray, "members examples"],
) -> Float64[np.ndarray, " members"]:
    """Fit reward = member + example by least squares; return member + mean example effect.

    The example effects are eliminated from the normal equations. One number stays undetermined for
    every group of members that shares no example with the other members. The least-norm solution
    sets the mean member effect of each such group to zero, which assumes that the groups are
    equally good on average.
    """
    members = observed.any(axis=1)
    examples = observed.any(axis=0)
    seen = observed[np.ix_(members, examples)].astype(np.float64)
    known = np.where(seen > 0, rewards[np.ix_(members, examples)], 0.0)
    per_example = seen.sum(axis=0)
    example_mean = known.sum(axis=0) / per_example
    matrix = np.diag(seen.sum(axis=1)) - (seen / per_example) @ seen.T
    right = ((known - example_mean) * seen).sum(axis=1)
    member_effect = np.linalg.lstsq(matrix, right)[0]
    example_effect = example_mean - (seen.T @ member_effect) / per_example
    fitted = np.full(len(rewards), np.nan)
    fitted[members] = member_effect + exact_mean(example_effect)
    return fitted
