"""Elo ratings of models from pairwise verdicts: Bradley-Terry by maximum likelihood.

Bradley and Terry (1952, Biometrika 39) give model i a rating r_i, with

    (1)  P(i beats j) = 1 / (1 + 10^((r_j - r_i) / 400))

on the scale of Elo. The ratings are those of largest likelihood, so the order of models and of
verdicts has no influence, unlike that of Elo's own updates after each game. They are relative to an
anchor, whose rating is 1000.

The maximum is finite only between models that have, directly or over others, both won and lost
against each other (Ford 1957, Am. Math. Monthly 64). A model that won against the anchor and never
lost has the rating inf, one that only lost -inf, and one that cannot be compared NaN.

Intervals are percentiles over 1000 resamples of the prompts, as verdicts about one prompt depend on
each other. Two more prompts take part in the resampling, in which each pair that was compared has
one verdict for each of the two: so a model that won all 20 games has an interval from about 300 to
inf above the other, and not from inf to inf (compare Agresti and Min 2005).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

ANCHOR_RATING = 1000.0
ELO_SCALE = 400 / math.log(10)
"""Elo points per unit of log-odds."""

RESAMPLES = 1000
LARGEST_STEP, SMALLEST_STEP, MOST_STEPS = 1.0, 1e-10, 1000

Wins = Float64[np.ndarray, "models models"]
"""`wins[i, j]`: in how many games model i beat model j."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decided game: both names, and the prompt on which the winner's answer was preferred."""

    prompt: int
    winner: str
    loser: str


@dataclass(frozen=True, slots=True)
class Rating:
    """The rating of a model, on the scale of Elo.

    Attributes:
        low: lower end of the 95 % interval of the difference to the anchor, plus 1000.
        high: upper end.
        wins: decided games that it won.
        losses: decided games that it lost.
    """

    model: str
    rating: float
    low: float
    high: float
    wins: int
    losses: int


def rate_models(
    models: Sequence[str], verdicts: Sequence[Verdict], anchor: str, seed: int = 0
) -> list[Rating]:
    """Rate models, best first; the order of models and of verdicts changes no bit.

    Args:
        models: their names; each once.
        verdicts: decided games between them.
        anchor: the model whose rating is 1000.
        seed: of the resampling.
    """
    names = sorted(models)
    place = {name: number for number, name in enumerate(names)}
    prompts = {prompt: row for row, prompt in enumerate(sorted({one.prompt for one in verdicts}))}
    games = np.zeros((len(prompts), len(names), len(names)))
    for one in verdicts:
        games[prompts[one.prompt], place[one.winner], place[one.loser]] += 1
    wins = games.sum(axis=0)
    points = _ratings(wins, place[anchor])
    low, high = _intervals(games, place[anchor], seed)
    rated = [
        Rating(name, points[at], low[at], high[at], int(wins[at].sum()), int(wins[:, at].sum()))
        for name, at in place.items()
    ]
    return sorted(rated, key=lambda one: (*map(_falling, (one.rating, one.low)), one.model))


def _falling(points: float) -> float:
    return math.inf if math.isnan(points) else -points


def _intervals(
    games: Float64[np.ndarray, "prompts models models"], anchor: int, seed: int
) -> tuple[list[float], list[float]]:
    """Return both ends of the intervals; a resample that cannot compare a model widens its own."""
    compared = ((games.sum(axis=0) + games.sum(axis=0).T) > 0).astype(float)
    upper = np.triu(compared)
    padded = np.concatenate([games, [upper, upper.T]])
    count = len(padded)
    draws = np.random.default_rng(seed).multinomial(count, [1 / count] * count, size=RESAMPLES)
    resampled = np.array([_ratings(wins, anchor) for wins in np.tensordot(draws, padded, axes=1)])
    lowest = np.where(np.isnan(resampled), -math.inf, resampled)
    highest = np.where(np.isnan(resampled), math.inf, resampled)
    # Ends are values of resamples: the mean of inf and a number would be no end of an interval.
    return (
        np.quantile(lowest, 0.025, axis=0, method="lower").tolist(),
        np.quantile(highest, 0.975, axis=0, method="higher").tolist(),
    )


def _ratings(wins: Wins, anchor: int) -> list[float]:
    """Return the ratings of largest likelihood, relative to the anchor."""
    over = _reaches(wins)
    above, below = over[:, anchor], over[anchor]
    ratings = np.full(len(wins), math.nan)
    ratings[above & ~below], ratings[below & ~above] = math.inf, -math.inf
    equals = np.flatnonzero(above & below)
    logits = _logits(wins[np.ix_(equals, equals)])
    origin = logits[np.searchsorted(equals, anchor)]
    ratings[equals] = ANCHOR_RATING + ELO_SCALE * (logits - origin)
    return [float(one) for one in ratings]


def _reaches(wins: Wins) -> Bool[np.ndarray, "models models"]:
    """Return which models won against which, directly or over others; each reaches itself."""
    reached = (wins > 0) | np.eye(len(wins), dtype=bool)
    for _ in range(len(wins).bit_length()):
        reached = (reached.astype(float) @ reached.astype(float)) > 0
    return reached


def _logits(wins: Wins) -> Float64[np.ndarray, " models"]:
    """Return the log-odds of largest likelihood, the first of them 0, by Newton's method.

    A step in which differences change by at most 1 always increases the likelihood, as its second
    derivative changes by less than the factor e over it (Bach 2010, EJS 4); larger ones are scaled.
    """
    games = wins + wins.T
    logits = np.zeros(len(wins))
    step = np.zeros(len(wins))
    for _ in range(MOST_STEPS if len(wins) > 1 else 0):
        chance = 1 / (1 + np.exp(logits[None, :] - logits[:, None]))
        gradient = (wins - games * chance).sum(axis=1)
        curvature = games * chance * (1 - chance)
        laplacian = np.diag(curvature.sum(axis=1)) - curvature
        step[1:] = np.linalg.solve(laplacian[1:, 1:], gradient[1:])
        largest = float(np.ptp(step))
        logits += step * min(1.0, LARGEST_STEP / largest) if largest else step
        if largest < SMALLEST_STEP:
            break
    return logits
