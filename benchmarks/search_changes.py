"""Changes of the default search by candidates: its strategy, its shaping or its fleet.

`benchmarks.search_candidates` compares them. The journal does not contain these changes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from germline.config import Nes
from germline.engines.master_weights import Masters
from germline.fleet import LocalFleet
from germline.protocols import Fleet, Shaping
from germline.protocols.wrappers import FleetWrapper
from germline.run.build_parts import RunParts
from germline.signal_types import SignalPower, UpdateSize
from germline.strategies.nes import NaturalEvolution
from germline.types import Decoding, Evaluation, Example, MeanUpdate, Population, Update

WORSE = 1.0
"""Loss of the center on its batch, in standard errors, above which a step is halved."""

REMEMBERED = 0.8
"""Decay of an average of centers, or of steps."""

ANCHOR = 0.05
"""Share of the way back to the start in a generation without any signal."""

LITTLE_SIGNAL = 0.2
"""Mean share of signal below which a population grows."""

MOST_GROWTH = 4
"""Largest factor by which a population grows."""


class CenterFleet(FleetWrapper):
    """A fleet of one engine whose center a candidate may move.

    Attributes:
        extra: number of rollouts in addition to those of the members.
    """

    def __init__(self, inner: Fleet) -> None:
        super().__init__(inner)
        assert isinstance(inner, LocalFleet)
        self.engine = inner.engine
        assert isinstance(self.engine.weights, Masters)
        self.masters = self.engine.weights
        self.extra = 0

    def copy(self) -> dict[str, torch.Tensor]:
        """Return a copy of the searched masters."""
        return {one.name: self.masters.tensors[one.name].clone() for one in self.masters.searched}

    def set(self, values: dict[str, torch.Tensor]) -> None:
        """Set the searched masters and the serving copy."""
        for name, value in values.items():
            self.masters.tensors[name].copy_(value)
        self.engine.refresh()


class TrustRegion(CenterFleet):
    """Halve a step that makes the center worse on the batch of the step.

    With d_j = r_j(theta + step) - r_j(theta) over the E examples of the batch, and their standard
    error s: if mean d < -WORSE s, the step is halved and evaluated again, up to twice; then it is
    dropped. The center is evaluated 1 to 4 times per generation.
    """

    def evaluate(
        self, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Evaluate the members, and store the batch."""
        self._batch, self._decoding = batch, decoding
        return self.inner.evaluate(population, batch, decoding)

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Apply the update, and halve or drop it if needed."""
        before, rewards = self.copy(), self._rewards()
        size = self.inner.apply(update)
        after = self.copy()
        for share in (1.0, 0.5, 0.25, 0.0):
            self.set({name: torch.lerp(before[name], after[name], share) for name in before})
            if share == 0.0 or not self._is_worse(self._rewards() - rewards):
                break
        return size

    def _rewards(self) -> np.ndarray:
        self.extra += len(self._batch)
        return self.inner.evaluate_center(self._batch, self._decoding).rewards[0]

    def _is_worse(self, differences: np.ndarray) -> bool:
        error = differences.std(ddof=1) / math.sqrt(len(differences))
        return bool(differences.mean() < -WORSE * error)


class Average(CenterFleet):
    """Score an exponential average of the centers; the search continues from the center itself.

    a_t = b a_(t-1) + (1 - b) theta_t,  a_0 = theta_0: a pure function of the journal.
    """

    def __init__(self, inner: Fleet) -> None:
        super().__init__(inner)
        self._average = self.copy()

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Apply the update, and update the average."""
        size = self.inner.apply(update)
        for name, value in self.copy().items():
            self._average[name].lerp_(value, 1 - REMEMBERED)
        return size

    def evaluate_center(
        self, examples: Sequence[Example], decoding: Decoding, samples: int = 1
    ) -> Evaluation:
        """Evaluate the average."""
        center = self.copy()
        self.set(self._average)
        evaluation = self.inner.evaluate_center(examples, decoding, samples)
        self.set(center)
        return evaluation


class Anchor(CenterFleet):
    """Move the center towards the start, more so in generations with little signal.

    theta <- theta_0 + (1 - ANCHOR (1 - r)) (theta - theta_0), r the share of signal.
    """

    def __init__(self, inner: Fleet) -> None:
        super().__init__(inner)
        self._start = self.copy()

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Apply the update, then move towards the start."""
        size = self.inner.apply(update)
        assert isinstance(update, Update)
        power = update.strategy_state.read().get("power")
        share = ANCHOR * (1 - signal_share(SignalPower(**power) if power else None))
        center = self.copy()
        self.set({name: torch.lerp(center[name], self._start[name], share) for name in center})
        return size


class Reuse(CenterFleet):
    """Reuse the rollouts of earlier generations: an exponential average of steps.

    step_t = (1 - b) sum_k b^k step_(t-k). Importance weights are useless here: after a step of rms
    rho sigma in d numbers, the logarithm of a weight has the variance rho^2 d, which is above 1,000
    for all spaces except the smallest subspaces, so one member would have all the weight.
    """

    def __init__(self, inner: Fleet) -> None:
        super().__init__(inner)
        self._steps = {name: torch.zeros_like(value) for name, value in self.copy().items()}

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Apply the mean of this and earlier steps."""
        before = self.copy()
        size = self.inner.apply(update)
        for name, after in self.copy().items():
            self._steps[name].lerp_(after - before[name], 1 - REMEMBERED)
        self.set({name: before[name] + self._steps[name] for name in before})
        return size


class PowerChange(NaturalEvolution):
    """A search whose candidate reads, or corrects, the measured power of each generation."""

    def of_power(self, power: SignalPower | None) -> SignalPower | None:
        """Return the power from which the update is computed."""
        return power

    def tell(
        self,
        population: Population,
        utilities: np.ndarray,
        fitness: np.ndarray | None = None,
        center: float | None = None,
        power: SignalPower | None = None,
    ) -> Update:
        """Compute the update from the power of the candidate."""
        return super().tell(population, utilities, fitness, center, self.of_power(power))


class Growing(PowerChange):
    """Double the population while the share of signal is small."""

    share = 1.0

    def ask(self, generation: int) -> Population:
        """Return the members of the current population size."""
        start = self.config.population
        grown = max(1, min(MOST_GROWTH, 2 ** round(math.log2(LITTLE_SIGNAL / self.share))))
        self.config = self.config.model_copy(update={"population": start * grown})
        try:
            return super().ask(generation)
        finally:
            self.config = self.config.model_copy(update={"population": start})

    def of_power(self, power: SignalPower | None) -> SignalPower | None:
        """Adapt the population size to the share of signal; the power stays."""
        latest = max(1e-3, signal_share(power))
        self.share = REMEMBERED * self.share + (1 - REMEMBERED) * latest
        return power


class FiniteExamples(PowerChange):
    """Measure the signal on the training examples, not on new ones.

    A batch of B of M examples without replacement: the variance of its mean around the mean of all
    M has the factor 1 - B / M (finite population correction, Cochran 1977), and so has the noise.

    Attributes:
        batch_share: B / M.
    """

    batch_share = 0.0

    def of_power(self, power: SignalPower | None) -> SignalPower | None:
        """Correct the noise."""
        return power and replace(power, noise=power.noise * (1 - self.batch_share))


def shrunk(shape: Shaping) -> Shaping:
    """Shrink the utilities of a pair by the reliability of its difference.

    With the difference D_k of a pair over E examples, its squared error v_k and the variance
    t = max(0, mean D^2 - mean v) of true differences: u_k = +-D_k t / (t + v_k), and v_k itself is
    moved halfway to the mean of all pairs, as E is small. If t is 0, utilities are not changed.
    """

    def reliable(
        evaluation: Evaluation, *, antithetic: bool, baseline: float | None = None
    ) -> np.ndarray:
        plain = shape(evaluation, antithetic=antithetic, baseline=baseline)
        rewards = evaluation.rewards
        examples = rewards.shape[1]
        if not antithetic or examples < 2 or np.isnan(rewards).any():
            return np.asarray(plain)
        apart = rewards[0::2] - rewards[1::2]
        means, errors = apart.mean(axis=1), apart.var(axis=1, ddof=1) / examples
        errors = (errors + errors.mean()) / 2
        true = float((means**2).mean() - errors.mean())
        if true <= 0:
            return np.asarray(plain)
        return np.repeat(means * true / (true + errors), 2) * np.tile([0.5, -0.5], len(means))

    return reliable


def signal_share(power: SignalPower | None) -> float:
    """Return the share of signal of one generation, between 0 and 1."""
    return min(1.0, max(0.0, power.share)) if power else 0.0


def with_fleet(kind: Callable[[Fleet], CenterFleet]) -> Callable[[RunParts], RunParts]:
    """Return the change that wraps the fleet of a run."""
    return lambda parts: replace(parts, fleet=kind(parts.fleet))


def with_growth(parts: RunParts) -> RunParts:
    """Let the population grow."""
    return replace(parts, strategy=Growing(*_arguments(parts)))


def with_finite_examples(parts: RunParts) -> RunParts:
    """Measure the signal on the training examples."""
    strategy = FiniteExamples(*_arguments(parts))
    examples = len(parts.task.examples("train"))
    strategy.batch_share = min(parts.config.batch_size, examples) / examples
    return replace(parts, strategy=strategy)


def with_shrunk_utilities(parts: RunParts) -> RunParts:
    """Shape by reliability."""
    return replace(parts, shape=shrunk(parts.shape))


def _arguments(parts: RunParts) -> tuple[Nes, int, int]:
    """Return those with which the strategy of a run is made."""
    section = parts.config.search
    assert isinstance(section, Nes)
    return section, parts.config.seed, parts.config.generations


def as_it_is(parts: RunParts) -> RunParts:
    """Change nothing: the candidate is its settings."""
    return parts
