"""How a setting moves over a run: constant, or on a straight line."""


def scheduled(value: float | tuple[float, float], generation: int, generations: int) -> float:
    """Return a setting's value in one generation of a run of `generations`.

    Args:
        value: a number is constant; a pair (start, end) is linear: exactly `start` in generation 0,
            exactly `end` in the last one, generations - 1. A run of one generation gets `start`.
        generation: 0 to generations - 1.
        generations: length of the whole run, so making a run longer moves a linear schedule.

    Raises:
        ValueError: the generation lies outside the run.
    """
    if not 0 <= generation < generations:
        raise ValueError(
            f"generation {generation} is outside a run of generations={generations}; "
            "they count from 0"
        )
    if not isinstance(value, tuple):
        return float(value)
    start, end = value
    done = generation / (generations - 1) if generations > 1 else 0.0
    return start * (1 - done) + end * done
