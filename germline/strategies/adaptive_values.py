"""Values that follow from what was told: sigma on plateaus or by success, and a running baseline.

Each is a row of numbers, one per generation. The next one follows from the last and from what was
told about its generation, so whoever is told the same again has the same numbers again: that is how
a resumed run finds its way back.
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
    """The values of generation 0, 1, ... as far as they follow from what was told."""

    def __init__(self, what: str, start: T) -> None:
        self._what = what
        self._values = [start]

    @property
    def newest(self) -> T:
        """The value of the generation to be told next."""
        return self._values[-1]

    def at(self, generation: int) -> T:
        """Return the value in a generation.

        Raises:
            GermlineError: a generation before it was not told.
        """
        if not 0 <= generation < len(self._values):
            raise GermlineError(
                f"the value of {self._what} in generation {generation} depends on the "
                f"fitness of those before it, told so far: {len(self._values) - 1}. Ask and tell "
                "generation after generation; a stopped run is taken up by strategy.recall(updates)"
            )
        return self._values[generation]

    def replace(self, generation: int, value: T) -> None:
        """Set the value of the generation to be told next.

        Raises:
            GermlineError: it is another generation.
        """
        if generation != len(self._values) - 1:
            raise GermlineError(
                f"generation {generation} cannot choose {self._what}: the next generation is "
                f"{len(self._values) - 1}"
            )
        self._values[-1] = value

    def follow(self, generation: int, value: T) -> None:
        """Add the value that follows a generation.

        Raises:
            GermlineError: it is not the next generation.
        """
        if generation != len(self._values) - 1:
            raise GermlineError(
                f"generation {generation} was told to {self._what}, but the next one is "
                f"{len(self._values) - 1}: tell each generation once, in order"
            )
        self._values.append(value)


class PlateauValue(AdaptiveValue[float]):
    """A value that falls each time fitness has stopped to rise.

    After `patience` generations in a row whose mean fitness is not above that of every generation
    before them, value <- max(min, factor value), and the count begins anew. Mean fitness is what
    the strategy climbs; it moves with the batch as well, so a small batch needs patience.
    """

    def __init__(self, settings: PlateauSchedule) -> None:
        super().__init__("a plateau schedule", settings.start)
        self._settings = settings
        self._best = -math.inf
        self._waited = 0

    def tell(self, generation: int, fitness: float | None) -> None:
        """Take in the mean fitness of the next generation; None, where all was lost, says nothing.

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
    """A value that grows while many members are fitter than the center, and falls where few are.

        value <- value * exp(rate * (share - target)), cut to [min, max]

    Source: the 1/5 success rule of Rechenberg (1973), with the share of a whole population in the
    place of one success or failure.
    """

    def __init__(self, settings: SuccessRateSigma) -> None:
        super().__init__("a sigma that goes by success", settings.start)
        self._settings = settings

    def tell(self, generation: int, share: float | None) -> None:
        """Take in the share of the next generation; None, where it was lost, says nothing.

        Raises:
            GermlineError: it is not the next generation.
        """
        to = self._settings
        step = 0.0 if share is None else to.rate * (share - to.target)
        self.follow(generation, scale_within(self.newest, step, to.min, to.max))


class ZeroSignalGrowth(AdaptiveValue[float]):
    """A factor that grows with every generation without signal, and shrinks with every other.

    factor <- min(most, step * factor)   after a generation without signal
    factor <- max(1, factor / step)      after one with it
    """

    def __init__(self, settings: GrowSigmaOnZeroSignal) -> None:
        super().__init__("a sigma that answers silence", 1.0)
        self._settings = settings

    def tell(self, generation: int, *, silent: bool) -> None:
        """Take in whether the next generation said nothing.

        Raises:
            GermlineError: it is not the next generation.
        """
        step, most = self._settings.factor, self._settings.most
        factor = min(most, self.newest * step) if silent else max(1.0, self.newest / step)
        self.follow(generation, factor)


class RunningMeanFitness(AdaptiveValue[float | None]):
    """A running mean of the fitness of the generations before; None until one was told.

    b <- decay b + (1 - decay) mean F          b is mean F after the first of them
    """

    def __init__(self, settings: RunningMeanBaseline) -> None:
        super().__init__("a running baseline", None)
        self._decay = settings.decay

    def tell(self, generation: int, fitness: float | None) -> None:
        """Take in the mean fitness of the next generation; None, where all was lost, says nothing.

        Raises:
            GermlineError: it is not the next generation.
        """
        before = self.newest
        if before is None or fitness is None:
            self.follow(generation, before if fitness is None else fitness)
        else:
            self.follow(generation, self._decay * before + (1 - self._decay) * fitness)
