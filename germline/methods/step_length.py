"""The length of an update, from log-probabilities that members gave already.

With the derivative d_kt = (log p_k+ - log p_k-) / 2 of a token along each of K directions, or log
p_k - log p of the center where members are no pairs, an update sigma * s * sum_k c_k eps_k changes
log p_t by s sum_k c_k d_kt to first order. A token is scored by some n of the directions only. With
z_kt = c_k^(-j) d_kt, where c^(-j) leaves out the example j to which the token belongs, as an update
changes the tokens that it was computed from more than others, the mean over pairs of different
directions estimates the square of what directions have in common, and that of squares the rest:

    (1)  m^2 = mean_t ((sum_k z_kt)^2 - sum_k z_kt^2) / (n (n - 1))
    (2)  v   = mean_t (sum_k z_kt^2) / n - m^2
    (3)  D   = max(K^2 m^2 + K v, |c|^2 mean_kt d_kt^2) / |c|^2

s^2 |c|^2 D is the mean square of the change; it is taken to be at least that of random coefficients
of the same length, as few tokens or directions may show no m by chance. Few tokens carry most of D,
so D is averaged over generations, and with what is typical at first. The step is chosen for

    (4)  s^2 |c|^2 mean D = change^2 mean_t (log p_t)^2 / (1 + changed / halved_after)^2

So the first step changes log-probabilities by the share `change` of what they are, in every model:
in the same unit, the temperature 1 + x changes them by about the share x. (log p)^2 is that of
generation 0, or that of the generation where it is less: a model whose answers become random does
not take longer steps.

A generation has changed where its mean reward is `ERRORS` standard errors from that of all
generations that have not; `changed` is the number of those that have. With q the share of the
training examples in a batch, S^2 the variance of the mean rewards of examples and e^2 that of the
mean of the samples of one, the square of the error of a batch of n examples is

    (5)  ((1 - q) S^2 + q e^2) / n

as batches that have all examples do not differ by the choice of them. `change` grows by `GROWTH`,
up to `longest`, in each unchanged generation but the first: a pretrained model that hardly ever
gives the answers that are asked for learns nothing from steps which are long enough for one that
does. Growth ends where the first step would have been `SIGMAS` perturbations long: coefficients are
derivatives that members measured one sigma away. In each changed generation `change` falls by
`FADING`, down to that of the first step. An unchanged generation whose step cannot grow counts in
`changed`, too: steps that earn nothing are a random walk.

What directions do beside the signal adds up as the squares of steps do. In generations that count
in `changed`, steps fall as 1 / changed, as in Robbins and Monro (1951, "A stochastic approximation
method"): the sum of their squares has a limit, while that of the steps has none as long as answers
do not become certain. So what adds up by chance ends, and the center can still move. The share of
signal (`signal_metrics`, equation 6) has no part in it: of a few dozen examples it is known so
badly (between -1 and 0.8 in one run) that steps which follow it jump, or end early.

Weight decay takes back what adds up by chance, and a share of what was learned, which is much of it
while rewards still get better. So weights decay in a generation that counts in `changed` and has a
mean reward below the highest so far, by a share that is proportional to the length of the step.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from jaxtyping import Float64, Int64

from germline.methods.sampled_batch import mean_rewards, scaled
from germline.types import MeanUpdate, Update

MEMORY = 0.7
"""Weight of a generation in the mean of D, of the weight of the next one."""

TYPICAL = 6.0
"""D of a step, as a multiple of that of random coefficients, before any generation was measured. It
was 2 to 12 on nano and SmolLM2."""

GROWTH = 1.5
"""Factor by which steps get longer while rewards have not changed."""

FADING = 1.02
"""Factor by which they get shorter again, so that growth by chance costs little at the end: without
it, nano's countdown ended at .81 instead of .83 with one of three seeds."""

SIGMAS = 2.0
"""Length of the first step, in perturbations, beyond which steps do not grow. It is 1.6 to 2.2 with
nano's wordle, which growth to 4.2 broke, and 0.8 with SmolLM2's capital letters, where it helps."""

MOST_DECAY = 3.0
"""Largest factor of weight decay: steps of the default settings grow threefold."""

ERRORS = 2.0
"""Standard errors of a difference by which rewards have changed."""

ROUNDING = 1e-6
"""Means that differ by this share are the same."""

STATE = "step"
"""Name of the state in `strategy_state` of an update."""


@dataclass(frozen=True)
class TokenSlopes:
    """What some directions do to the tokens that they score.

    Attributes:
        directions: their place in the order of coefficients.
        slopes: change of the log-probability of every token along each direction.
        places: of the example of every token, in the batch.
        parts: what each example adds to the coefficients of these directions, before shaping.
    """

    directions: slice
    slopes: Float64[np.ndarray, "directions tokens"]
    places: Int64[np.ndarray, " tokens"]
    parts: Float64[np.ndarray, "directions examples"]


class StepLength:
    """Chooses the learning rate of updates; its state is in the updates.

    Args:
        change: of log-probabilities by the first step, as a share of themselves.
        longest: such a share of any step.
        halved_after: `changed` of equation (4) at which steps are half as long; None: never.
        weight_decay: share of the way to the starting weights, of a step as long as the first.
    """

    def __init__(
        self,
        change: float,
        longest: float,
        halved_after: float | None,
        weight_decay: float = 0.0,
    ) -> None:
        self._weight_decay = weight_decay
        self._first = change
        self._longest = max(change, longest)
        self._halved_after = math.inf if halved_after is None else halved_after
        self._state = _State(change)

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> None:
        """Continue after the updates of a stopped run."""
        for update in reversed(updates):
            if state := update.strategy_state.get(STATE):
                self._state = _State(**state)
                return

    def of(
        self,
        update: Update,
        groups: Sequence[TokenSlopes],
        log_probs: float,
        rewards: Float64[np.ndarray, "samples examples"],
        share: float,
    ) -> tuple[Update, float]:
        """Return the update with its learning rate, decay and the state, and its KL divergence.

        The first two are 0 where no coefficient changes a log-probability. The divergence of the
        center after the update from the center before it is predicted, in nats per token: half the
        mean square of the change.

        Args:
            update: its coefficients.
            groups: how directions change tokens.
            log_probs: mean square of the log-probabilities of the scored tokens.
            rewards: of new samples; NaN where none is known.
            share: of the training examples in the batch.
        """
        coefficients = np.asarray(update.coefficients)
        length = float(np.linalg.norm(coefficients))
        power = divergence_power(coefficients, groups) if length else 0.0
        rate = square = decay = 0.0
        if power:
            state = self._state.after(rewards, share, self._first, self._longest)
            if not state.weight:
                typical = TYPICAL * _random_power(groups)
                state = replace(state, start=log_probs, power=typical, weight=1.0)
            power, weight = MEMORY * state.power + power, MEMORY * state.weight + 1
            at_start = state.start_power or power / weight
            state = replace(state, power=power, weight=weight, start_power=at_start)
            self._state = state
            change = state.relative_step / (1 + state.changed / self._halved_after)
            square = change**2 * min(state.start, log_probs)
            rate = update.sigma * math.sqrt(square * weight / power) / length
            times = min(MOST_DECAY, change / self._first)
            decay = self._weight_decay * times if state.decays else 0.0
        kept = {**update.strategy_state, STATE: asdict(self._state)}
        chosen = replace(update, learning_rate=rate, decay=decay, strategy_state=kept)
        return chosen, square / 2


@dataclass(frozen=True)
class _State:
    """What is known after a generation.

    Attributes:
        relative_step: `change` of equation (4).
        power: sum of D, weighted.
        weight: sum of the weights.
        start: mean square of the log-probabilities in generation 0.
        start_power: mean D of the first step.
        changed: generations whose rewards have changed, or whose step could not grow.
        examples: of all generations whose rewards have not.
        mean: of their rewards.
        variance: of them, within generations, as far as batches differ by chance.
        highest: mean reward of a generation so far.
        decays: whether the newest generation counts in `changed` and is below it.
    """

    relative_step: float
    power: float = 0.0
    weight: float = 0.0
    start: float = 0.0
    start_power: float = 0.0
    changed: int = 0
    examples: int = 0
    mean: float = 0.0
    variance: float = 0.0
    highest: float | None = None
    decays: bool = False

    def after(
        self,
        rewards: Float64[np.ndarray, "samples examples"],
        share: float,
        first: float,
        longest: float,
    ) -> "_State":
        """Compare the rewards of a generation with those of the generations before.

        The reward of a single example counts as changed, because its error is not known.
        """
        known = mean_rewards(rewards.T)
        known = known[np.isfinite(known)]
        if not len(known):
            return self
        examples, mean = len(known), float(known.mean())
        highest = mean if self.highest is None else max(mean, self.highest)
        seen = replace(self, highest=highest, decays=False)
        counted = replace(seen, changed=self.changed + 1, decays=mean < highest)
        if examples == 1:
            return counted
        between, within = float(known.var(ddof=1)), _error_of_means(rewards)
        variance = (1 - share) * between + share * within
        if not self.examples:
            return replace(seen, examples=examples, mean=mean, variance=variance)
        error = math.sqrt(variance / examples + self.variance / self.examples)
        if abs(mean - self.mean) > max(ERRORS * error, ROUNDING * abs(self.mean)):
            return replace(counted, relative_step=max(first, self.relative_step / FADING))
        new = examples / (examples + self.examples)
        if self.start_power and self.start:
            longest = min(longest, SIGMAS * math.sqrt(self.start_power / self.start))
        grown = max(self.relative_step, min(longest, GROWTH * self.relative_step))
        return replace(
            counted if grown == self.relative_step else seen,
            relative_step=grown,
            examples=examples + self.examples,
            mean=self.mean + new * (mean - self.mean),
            variance=self.variance + new * (variance - self.variance),
        )


def _error_of_means(rewards: Float64[np.ndarray, "samples examples"]) -> float:
    """Return the squared standard error of the mean of an example's samples, over examples."""
    known = np.ma.masked_invalid(rewards)
    squared = (known.var(axis=0, ddof=1) / known.count(axis=0)).mean()
    return float(np.ma.filled(squared, 0.0))  # of single samples, none is known


def divergence_power(
    coefficients: Float64[np.ndarray, " directions"], groups: Sequence[TokenSlopes]
) -> float:
    """Return D of equation (3); 0 without any token."""
    count, length = len(coefficients), float(coefficients @ coefficients)
    tokens = sum(len(group.places) for group in groups)
    pairs = squares = 0.0
    for group in groups:
        change = _without_own_example(coefficients[group.directions], group)
        n = len(change)
        each = (change**2).sum(axis=0)
        squares += float(each.sum()) / n
        if n > 1:
            pairs += float((change.sum(axis=0) ** 2 - each).sum()) / (n * (n - 1))
    if not tokens:
        return 0.0
    common = max(0.0, pairs / tokens)
    apart = max(0.0, squares / tokens - common)
    return max((count**2 * common + count * apart) / length, _random_power(groups))


def _random_power(groups: Sequence[TokenSlopes]) -> float:
    """Return D of random coefficients: the mean square of the slopes of a token."""
    slopes = sum(float((group.slopes**2).mean(axis=0).sum()) for group in groups)
    return slopes / sum(len(group.places) for group in groups)


def _without_own_example(
    coefficients: Float64[np.ndarray, " directions"], group: TokenSlopes
) -> Float64[np.ndarray, "directions tokens"]:
    """Return z of equation (1): how the other examples, by each direction, change each token.

    Shaped coefficients are taken to be the sum of the parts times a factor, by least squares (ranks
    are bounded, and parts are not), so the part of an example is a share of them. With one example,
    nothing can be left out.
    """
    parts = scaled(group.parts, np.isfinite(group.parts))
    total = parts.sum(axis=1)
    scored = len(np.unique(group.places))
    left = coefficients[:, None]
    if scored > 1 and total.any():
        factor = (coefficients @ total) / (total @ total)
        left = (left - factor * parts[:, group.places]) * scored / (scored - 1)
    changed: Float64[np.ndarray, "directions tokens"] = left * group.slopes
    return changed
