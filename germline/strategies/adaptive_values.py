"""Values that adapt to the run: sigma on plateaus or by success rate, and a running baseline.

Each is a sequence of numbers, one per generation. A number is computed from the one before it and
from a result of the generation between them, so the same results give the same numbers, which is
what resume relies on.
"""

import math
from typing import Generic, TypeVar

from germline.config import (
    GrowSigmaOnZeroSignal,
    PlateauSchedule,
    RunningMeanBaseline,
    SuccessRateSigma,
)
from germline.schedules import scale_within
from germline.types import GermlineError

T = TypeVar("T")


class AdaptiveValue(Generic[T]):
    """The values of generations 0, 1, ... up to the next one."""

    def __init__(self, name: str, start: T) -> None:
        self._name = name
        self._values = [start]

    @property
    def newest(self) -> T:
        """The value of the next generation."""
        return self._values[-1]

    def at(self, generation: int) -> T:
        """Return the value in a generation.

        Raises:
            GermlineError: it depends on an earlier generation whose results are missing.
        """
        if not 0 <= generation < len(self._values):
            raise GermlineError(
                f"the value of {self._name} in generation {generation} depends on the "
                f"generations before it, and strategy.tell was called for {len(self._values) - 1} "
                "of them. Ask and tell generation after generation; to continue a stopped run, "
                "call strategy.recall(updates)"
            )
        return self._values[generation]

    def replace(self, generation: int, value: T) -> None:
        """Set the value of the next generation.

        Raises:
            GermlineError: the generation is not the next one.
        """
        if generation != len(self._values) - 1:
            raise GermlineError(
                f"{self._name} cannot be set for generation {generation}: the next generation is "
                f"{len(self._values) - 1}"
            )
        self._values[-1] = value

    def follow(self, generation: int, value: T) -> None:
        """Add the value of the generation after `generation`.

        Raises:
            GermlineError: `generation` is not the next one.
        """
        if generation != len(self._values) - 1:
            raise GermlineError(
                f"{self._name} adapts to generation {len(self._values) - 1} next, found "
                f"generation {generation}: tell each generation once, in order"
            )
        self._values.append(value)


class PlateauValue(AdaptiveValue[float]):
    """A value that decreases each time fitness has stopped increasing.

    After `patience` consecutive generations whose mean fitness is not above that of all earlier
    generations, value <- max(min, factor value), and the count restarts. Mean fitness also varies
    with the batch, so a small batch needs a larger patience.
    """

    def __init__(self, settings: PlateauSchedule) -> None:
        super().__init__("a plateau schedule", settings.start)
        self._settings = settings
        self._best = -math.inf
        self._waited = 0

    def tell(self, generation: int, fitness: float | None) -> None:
        """Adapt to the mean fitness of the next generation; None (all missing) changes nothing.

        Raises:
            GermlineError: it is not the next generation.
        """
        value, waited = self.newest, self._waited
        if fitness is not None:
            waited = 0 if fitness > self._best else waited + 1
        if waited == self._settings.patience:
            value, waited = max(self._settings.min, self._settings.factor * value), 0
        self.follow(generation, value)
        self._waited = waited
        self._best = self._best if fitness is None else max(self._best, fitness)


class SuccessRateValue(AdaptiveValue[float]):
    """A value that increases while many members are fitter than the center, and else decreases.

        value <- value * exp(rate * (share - target)), cut to [min, max]

    Source: the 1/5 success rule of Rechenberg (1973), with the share of a whole population in the
    place of one success or failure.
    """

    def __init__(self, settings: SuccessRateSigma) -> None:
        super().__init__("a sigma that follows the success rate", settings.start)
        self._settings = settings

    def tell(self, generation: int, share: float | None) -> None:
        """Adapt to the share of fitter members; None (fitness missing) changes nothing.

        Raises:
            GermlineError: it is not the next generation.
        """
        settings = self._settings
        step = 0.0 if share is None else settings.rate * (share - settings.target)
        self.follow(generation, scale_within(self.newest, step, settings.min, settings.max))


class ZeroSignalGrowth(AdaptiveValue[float]):
    """A factor that grows after each generation without signal, and shrinks after each other one.

    factor <- min(most, step * factor)   after a generation without signal
    factor <- max(1, factor / step)      after a generation with signal
    """

    def __init__(self, settings: GrowSigmaOnZeroSignal) -> None:
        super().__init__("a sigma that grows without signal", 1.0)
        self._settings = settings

    def tell(self, generation: int, *, no_signal: bool) -> None:
        """Adapt to whether the next generation was without signal.

        Raises:
            GermlineError: it is not the next generation.
        """
        step, most = self._settings.factor, self._settings.most
        factor = min(most, self.newest * step) if no_signal else max(1.0, self.newest / step)
        self.follow(generation, factor)


class RunningMeanFitness(AdaptiveValue[float | None]):
    """A running mean of the fitness of earlier generations; None before the first one.

    b <- decay b + (1 - decay) mean F          b is mean F after the first generation
    """

    def __init__(self, settings: RunningMeanBaseline) -> None:
        super().__init__("a running baseline", None)
        self._decay = settings.decay

    def tell(self, generation: int, fitness: float | None) -> None:
        """Adapt to the mean fitness of the next generation; None (all missing) changes nothing.

        Raises:
            GermlineError: it is not the next generation.
        """
        before = self.newest
        if before is None or fitness is None:
            self.follow(generation, before if fitness is None else fitness)
        else:
            self.follow(generation, self._decay * before + (1 - self._decay) * fitness)
