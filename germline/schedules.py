"""How a setting moves over a run: constant, linear, a cosine, or by a factor of its own."""

import math
from decimal import Context, Decimal

from germline.config import CosineSchedule, LinearSchedule, Scheduled

_DIGITS = Context(prec=28)


def value_at(value: Scheduled, generation: int, generations: int) -> float:
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
    if isinstance(value, LinearSchedule):
        done = generation / (generations - 1) if generations > 1 else 0.0
        return value.start * (1 - done) + value.end * done
    if isinstance(value, CosineSchedule):
        since, span = generation - value.warmup, generations - 1 - value.warmup
        if since < 0:
            return value.start * (generation + 1) / (value.warmup + 1)
        share = (1 + math.cos(math.pi * since / span)) / 2 if span > 0 else 1.0
        return value.start * share + value.end * (1 - share)
    return float(value)


def scale_within(value: float, log_step: float, least: float, most: float) -> float:
    """Return value * exp(log_step), cut to [least, most], with the same bits on every machine.

    The exponential is a decimal one of 28 digits: those of C libraries differ in the last bit, and
    a replay elsewhere would end at another digest.
    """
    return min(max(value * float(Decimal(log_step).exp(_DIGITS)), least), most)
