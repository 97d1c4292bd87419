"""How much signal a generation carries: ties, agreement of halves, directions, a random walk.

r_ij is the reward of member i on example j, F_i its fitness, u_i its utility and s_i its sign;
values closer than `shaping.RESOLUTION` are equal, as they are to every shaping.

    (1)  examples with max_i r_ij > min_i r_ij, of all examples
    (2)  pairs with F_2k and F_2k+1 known and different, of all pairs
    (3)  c_k = 1/N sum of s_i u_i over the members of direction k     the update, by direction
    (4)  rho = c'c" / (|c'| |c"|)       with c' from the even, c" from the odd examples
    (5)  (sum_k c_k^2)^2 / sum_k c_k^4            effective number of directions
    (6)  total = mean_k c_k^2,   noise = mean_k (G - 1) / G sum_g (c_k^(-g) - mean_g c_k^(-g))^2
         signal = their difference, with c^(-g) from all examples but every G-th from the g-th on

    (7)  f = ((1 - 2 / d) |C|^2 / (n / (n - 1) sum_j |C_j - C / n|^2) - 1) sqrt((n - 1) / n)

with C_j the coefficients (3) of the rewards of example j of n, less their mean over members, C
their sum and d = K (n - 1): an F ratio of K and d degrees of freedom, with the mean 0 and the
variance 2 / K where examples agree by chance alone. It is so also where members differ on few of
them, and the noise of (6) is too small: leaving out one example does not change the shape of
another.

(4) is the cosine of the updates themselves as far as directions are orthogonal, which random ones
in a high dimension are. (5) is the participation ratio: N for equal coefficients, 1 for a single
one other than 0. (6) is the jackknife variance of the coefficients (Efron and
Stein 1981), with G groups of examples, at most 32; where utilities are differences of means, it is
the variance of a mean of examples that are drawn independently.

Where a member is compared on a share q of the examples, and other members on others, the noise of
each coefficient is that of few examples, and the update averages it over members: the noise power
in (4) and (6) is multiplied by q.

Known limits: (4) includes the noise of the choice of examples and the sampling noise, not
that of the choice of directions. One generation of K directions gives (4) to about +-1/sqrt(K):
average several generations. Members given by coordinates have no (3) to (5).

**Random walk.** An update changes each weight by the sum of c_k eps_k over directions, times the
learning rate a. Without a signal the coefficients are noise, so a step has the root mean square

    (8)  s_t = a_t |c_t|                    per weight, in `strategy.sigma_unit`

and steps along new directions add up as a random walk, which bounds the noise from above:

    (9)  w_T = sqrt(sum_t s_t^2)     rate * delta * sqrt(T) of docs/tuning.md, measured

With momentum, a step counts 1 / (1 - momentum) times in the end. Adam divides by the size of its
gradients, so that s_t = a_t for gradients of any size. Weight decay is not included, nor are sigmas
that differ by tensor.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Float64

from germline.config import OptimizerConfig
from germline.protocols import Shaping
from germline.shaping import RESOLUTION
from germline.types import (
    Evaluation,
    MeanUpdate,
    Population,
    SeedPerturbation,
    SigmaTrial,
    SignalPower,
    Signals,
    Update,
)

MOST_GROUPS = 32
"""Largest G of equation (6): each group costs shaping the whole population once."""

MOST_RATIO = 100.0
"""Largest ratio of powers in equation (7): examples that agree exactly have no noise."""


def is_zero_signal(update: Update | MeanUpdate) -> bool:
    """Say whether all coefficients, or all utilities, of an update are 0."""
    if isinstance(update, MeanUpdate):
        return not any(update.utilities)
    return update.has_no_signal


class RandomWalk:
    """The distance of equation (9), update by update."""

    def __init__(self, optimizer: OptimizerConfig | None = None, start: float = 0.0) -> None:
        self._normalized = optimizer is not None and optimizer.kind == "adam"
        self._gain = 1 / (1 - getattr(optimizer, "momentum", 0.0))
        self._squared = start**2
        self._known = True

    @property
    def distance(self) -> float | None:
        """The distance so far, in `strategy.sigma_unit`; None if a step is no sum of directions."""
        if not self._known:
            return None
        return math.sqrt(self._squared)

    def follow(self, update: Update | MeanUpdate) -> None:
        """Add the step of one more update."""
        if isinstance(update, MeanUpdate) or update.backpropagated:
            self._known = False
            return
        if update.skipped:
            return
        step = self._gain * update.learning_rate * np.asarray(update.coefficients, np.float64)
        if self._normalized:
            step = np.array([update.learning_rate if step.any() else 0.0])
        with np.errstate(over="ignore"):  # of rewards near the end of float64, not shaped: infinite
            self._squared += float(step @ step)


def walked(
    updates: Sequence[Update | MeanUpdate],
    optimizer: OptimizerConfig | None = None,
    start: float = 0.0,
) -> list[float | None]:
    """Return the distance after each of a run's updates."""
    walk = RandomWalk(optimizer, start)
    distances = []
    for update in updates:
        walk.follow(update)
        distances.append(walk.distance)
    return distances


@dataclass
class SignalMetrics:
    """Measures the signal of a run's generations, and counts those without one in a row.

    Attributes:
        zero_signal_streak: generations without a signal since the last one with a signal.
        walk: of the updates so far.
        on_trial: is called before and after each trial of the calibration of sigma.
        is_zero: whether an update has no signal; of the method, where updates do not show it.
    """

    zero_signal_streak: int = 0
    walk: RandomWalk = field(default_factory=RandomWalk)
    on_trial: Callable[[SigmaTrial], None] = lambda _trial: None
    is_zero: Callable[[Update | MeanUpdate], bool] = is_zero_signal

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> None:
        """Count the updates of a stopped run."""
        for update in updates:
            self._count(update)

    def of(
        self,
        population: Population,
        evaluation: Evaluation,
        fitness: Float[np.ndarray, " members"],
        update: Update | MeanUpdate,
        shape: Shaping,
        share: float = 1.0,
    ) -> Signals:
        """Measure the signal of the next generation; call it once for each, in order."""
        self._count(update)
        return Signals(
            informative_examples=(
                informative_examples(evaluation.rewards) if len(population.members) > 1 else None
            ),
            informative_pairs=informative_pairs(fitness) if population.antithetic else None,
            empty=empty_share(evaluation),
            zero=self.zero_signal_streak > 0,
            zeros_in_a_row=self.zero_signal_streak,
            agreement=half_agreement(population, evaluation, shape, share),
            directions=(
                effective_directions(update.coefficients) if isinstance(update, Update) else None
            ),
            walk=self.walk.distance,
        )

    def _count(self, update: Update | MeanUpdate) -> None:
        self.zero_signal_streak = self.zero_signal_streak + 1 if self.is_zero(update) else 0
        self.walk.follow(update)


def informative_examples(rewards: Float[np.ndarray, "members examples"]) -> float:
    """Return the share of examples on which members differ: equation (1); NaN is missing."""
    return float(np.mean(_are_informative(rewards)))


def _are_informative(rewards: Float[np.ndarray, "members examples"]) -> np.ndarray:
    seen = ~np.isnan(rewards)
    highest = np.where(seen, rewards, -np.inf).max(axis=0)
    lowest = np.where(seen, rewards, np.inf).min(axis=0)
    return _differ(highest, lowest)


def informative_pairs(fitness: Float[np.ndarray, " members"]) -> float:
    """Return the share of antithetic pairs whose halves differ: equation (2)."""
    return float(np.mean(_differ(fitness[0::2], fitness[1::2])))


def empty_share(evaluation: Evaluation) -> float:
    """Return the share of completions without any text; special tokens are none."""
    texts = [rollout.completion.text for rollout in evaluation.rollouts]
    return sum(not text.strip() for text in texts) / max(1, len(texts))


def half_agreement(
    population: Population, evaluation: Evaluation, shape: Shaping, share: float = 1.0
) -> float | None:
    """Return the cosine of the updates from two halves of the examples: equation (4).

    Each half is shaped separately. With `share` below 1, this share of the noise is counted. It is
    0 where one half has no signal. It is None where both halves have none, with a single example,
    and for members given by coordinates.
    """
    rewards = evaluation.rewards
    if rewards.shape[1] < 2 or not all(
        isinstance(member, SeedPerturbation) for member in population.members
    ):
        return None
    even, odd = (
        _shaped_weights(population, half, shape) for half in (rewards[:, 0::2], rewards[:, 1::2])
    )
    if not even.any() and not odd.any():
        return None
    if not even.any() or not odd.any():
        return 0.0
    # Products of huge or tiny weights leave the range of float64; scaled ones do not.
    even, odd = (half / np.abs(half).max() for half in (even, odd))
    lengths = float(np.linalg.norm(even) * np.linalg.norm(odd))
    cosine = float(np.clip(even @ odd / lengths, -1.0, 1.0))
    return cosine / (1 - (1 - abs(cosine)) * (1 - share))


def signal_power(
    population: Population, evaluation: Evaluation, shape: Shaping, share: float = 1.0
) -> SignalPower | None:
    """Measure the power of the coefficients, and how much of it is noise: equation (6).

    With `share` below 1, the total is that of the signal and of the share of the noise.

    None with a single example, which shows no noise, for members given by coordinates, and where
    squares of unshaped rewards leave the range of float64.
    """
    rewards = evaluation.rewards
    groups = min(rewards.shape[1], MOST_GROUPS)
    if groups < 2 or not all(isinstance(member, SeedPerturbation) for member in population.members):
        return None
    places = np.arange(rewards.shape[1])
    without = np.stack(
        [
            _shaped_weights(population, rewards[:, places % groups != g], shape)
            for g in range(groups)
        ]
    )
    with np.errstate(over="ignore", invalid="ignore"):
        squares = ((without - without.mean(axis=0)) ** 2).sum(axis=0)
        total = np.mean(_shaped_weights(population, rewards, shape) ** 2)
        noise = np.mean(squares) * (groups - 1) / groups
        if share < 1:
            signal = total - noise
            total = max(0.0, signal) + share * noise
            noise = total - signal
    if not (np.isfinite(total) and np.isfinite(noise)):
        return None
    return SignalPower(float(total), float(noise), _excess(population, rewards))


def _excess(population: Population, rewards: Float[np.ndarray, "members examples"]) -> float | None:
    """Return f of equation (7); 0 where members do not differ.

    None with d of 2 or less, where F has no mean.
    """
    known = ~np.isnan(rewards)
    largest = np.where(known, np.abs(rewards), 0.0).max()
    scaled = rewards / (largest or 1.0)  # sums and squares of huge or tiny ones leave the range
    means = np.where(known, scaled, 0).sum(axis=0) / np.maximum(1, known.sum(axis=0))
    # Where all are equal, their mean may be another number by rounding.
    centered = np.where(known & _are_informative(scaled), scaled - means, 0.0)
    parts = np.stack([direction_weights(population, column) for column in centered.T], axis=1)
    n, whole = parts.shape[1], parts.sum(axis=1)
    power = float((whole**2).sum())
    noise = float(((parts - whole[:, None] / n) ** 2).sum()) * n / (n - 1)
    freedom = len(parts) * (n - 1)
    if freedom <= 2:
        return None
    if not power and not noise:
        return 0.0
    ratio = (1 - 2 / freedom) * power / max(noise, power / MOST_RATIO)
    return (ratio - 1) * math.sqrt((n - 1) / n)


def _shaped_weights(
    population: Population, rewards: Float[np.ndarray, "members examples"], shape: Shaping
) -> Float64[np.ndarray, " directions"]:
    """Return the weight of each direction from the rewards of some examples alone."""
    evaluation = Evaluation(rewards, (), 0, 0.0)
    utilities = shape(evaluation, antithetic=population.antithetic, baseline=population.baseline)
    return direction_weights(population, utilities)


def direction_weights(
    population: Population, utilities: Float[np.ndarray, " members"]
) -> Float64[np.ndarray, " directions"]:
    """Sum utilities into the weight of each direction: equation (3)."""
    members = population.seed_perturbations()
    weights = np.zeros(1 + max(member.direction for member in members))
    for member, utility in zip(members, utilities, strict=True):
        weights[member.direction] += member.sign * utility / len(members)
    return weights


def effective_directions(coefficients: Sequence[float]) -> float | None:
    """Return the effective number of directions: equation (5); None if all weights are 0."""
    weights = np.abs(np.asarray(coefficients, dtype=np.float64))
    if not weights.any():
        return None
    weights /= weights.max()  # powers of tiny or huge values leave the range of float64
    return float((weights**2).sum() ** 2 / (weights**4).sum())


def _differ(values: Float[np.ndarray, " n"], others: Float[np.ndarray, " n"]) -> np.ndarray:
    """Say which values differ by more than their resolution; NaN differs from no value.

    An example without any reward has infinities here.
    """
    return np.abs(values - others) > RESOLUTION * np.maximum(np.abs(values), np.abs(others))
