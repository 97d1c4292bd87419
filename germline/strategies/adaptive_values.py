"""Values that adapt to the run, generation by generation.

A value is computed from the one before it and from a result of the generation between them, so the
same results give the same values, which is what resume relies on.
"""

from typing import Generic, TypeVar

from germline.config import RunningMeanBaseline
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
        """Return the value in a generation, the next one at most."""
        if not 0 <= generation < len(self._values):
            raise GermlineError(
                f"the value of {self._name} in generation {generation} depends on the "
                f"generations before it, and strategy.tell was called for {len(self._values) - 1} "
                "of them. Ask and tell generation after generation; to continue a stopped run, "
                "call strategy.recall(updates)"
            )
        return self._values[generation]

    def replace(self, generation: int, value: T) -> None:
        """Set the value of the next generation."""
        self._check_is_next(generation)
        self._values[-1] = value

    def follow(self, generation: int, value: T) -> None:
        """Add the value of the generation after `generation`, which is the next one."""
        self._check_is_next(generation)
        self._values.append(value)

    def _check_is_next(self, generation: int) -> None:
        if generation != len(self._values) - 1:
            raise GermlineError(
                f"{self._name} adapts to generation {len(self._values) - 1} next, found "
                f"generation {generation}: tell each generation once, in order"
            )


class RunningMeanFitness(AdaptiveValue[float | None]):
    """A running mean of the fitness of earlier generations; None before the first one.

    b <- decay b + (1 - decay) mean F          b is mean F after the first generation
    """

    def __init__(self, settings: RunningMeanBaseline) -> None:
        super().__init__("a running baseline", None)
        self._decay = settings.decay

    def tell(self, generation: int, fitness: float | None) -> None:
        """Adapt to the mean fitness of the next generation; None (all missing) changes nothing."""
        before = self.newest
        if before is None or fitness is None:
            self.follow(generation, before if fitness is None else fitness)
        else:
            self.follow(generation, self._decay * before + (1 - self._decay) * fitness)
