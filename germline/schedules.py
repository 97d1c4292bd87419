"""How a setting moves over a run: constant, linear, a cosine, or lower on each plateau."""

import math

from germline.config import Cosine, Linear, Plateau, Scheduled
from germline.types import GermlineError


def scheduled(value: Scheduled, generation: int, generations: int) -> float:
    """Return a setting's value in generation g of a run of G.

        constant    value
        linear      start (1 - d) + end d                       d = g / (G - 1)
        cosine      start c + end (1 - c)                       c = (1 + cos(pi d)) / 2
                    with d = (g - warmup) / (G - 1 - warmup), and before that, for g < warmup:
                    start (g + 1) / (warmup + 1)

    So it is exactly `start` in generation 0 (with warmup: in generation `warmup`) and exactly `end`
    in the last; a run of one generation gets `start`. Source of the cosine: Loshchilov and Hutter
    (2017, arXiv 1608.03983), equation 5, without restarts.

    Args:
        value: a number or a schedule.
        generation: 0 to generations - 1.
        generations: length of the whole run, so making a run longer moves a schedule.

    Raises:
        ValueError: the generation lies outside the run.
    """
    if not 0 <= generation < generations:
        raise ValueError(
            f"generation {generation} is outside a run of generations={generations}; "
            "they count from 0"
        )
    if isinstance(value, Linear):
        done = generation / (generations - 1) if generations > 1 else 0.0
        return value.start * (1 - done) + value.end * done
    if isinstance(value, Cosine):
        since, span = generation - value.warmup, generations - 1 - value.warmup
        if since < 0:
            return value.start * (generation + 1) / (value.warmup + 1)
        share = (1 + math.cos(math.pi * since / span)) / 2 if span > 0 else 1.0
        return value.start * share + value.end * (1 - share)
    return float(value)


class Plateaus:
    """A value that falls each time fitness has stopped to rise.

    After `patience` generations in a row whose mean fitness is not above that of every generation
    before them, value <- max(min, factor value), and the count begins anew. Mean fitness is what
    the strategy climbs; it moves with the batch as well, so a small batch needs patience.

    The value of a generation follows from the fitness of those before it, whenever it was told.
    """

    def __init__(self, settings: Plateau) -> None:
        self._settings = settings
        self._values = [settings.start]  # of generation 0, 1, ... as far as fitness was told
        self._best = -math.inf
        self._waited = 0

    def at(self, generation: int) -> float:
        """Return the value in a generation.

        Raises:
            GermlineError: the fitness of a generation before it was not told.
        """
        if not 0 <= generation < len(self._values):
            raise GermlineError(
                f"the value of a plateau schedule in generation {generation} depends on the "
                f"fitness of those before it, told so far: {len(self._values) - 1}. Ask and tell "
                "generation after generation; a stopped run is taken up by strategy.recall(updates)"
            )
        return self._values[generation]

    def tell(self, generation: int, fitness: float | None) -> None:
        """Take in the mean fitness of the next generation; None, where all was lost, says nothing.

        Raises:
            GermlineError: it is not the next generation.
        """
        if generation != len(self._values) - 1:
            raise GermlineError(
                f"generation {generation} was told to a plateau schedule, but the next one is "
                f"{len(self._values) - 1}: tell each generation once, in order"
            )
        value = self._values[-1]
        if fitness is not None:
            self._waited = 0 if fitness > self._best else self._waited + 1
            self._best = max(self._best, fitness)
        if self._waited == self._settings.patience:
            value, self._waited = max(self._settings.min, self._settings.factor * value), 0
        self._values.append(value)
