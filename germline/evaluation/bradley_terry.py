"""Elo ratings of models from pairwise verdicts, by the model of Bradley and Terry.

Bradley and Terry (1952, Biometrika 39) give model i a rating r_i, with

    (1)  P(i beats j) = 1 / (1 + 10^((r_j - r_i) / 400))

on the scale of Elo. The ratings maximize the likelihood of all verdicts together and of one more
win of every model over every other one (Laplace's rule of succession): so they are finite, even of
a model that never lost, and neither the order of models nor that of verdicts changes them. They are
relative to an anchor, whose rating is 1000.

Intervals are percentiles over 1000 resamples of the prompts, as verdicts about one prompt depend on
each other. It is the Bayesian bootstrap (Rubin 1981, Annals of Statistics 9): prompts have random
weights, and the added wins are those of two more prompts.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

ANCHOR_RATING = 1000.0
ELO_SCALE = 400 / math.log(10)
"""Elo points per unit of log-odds."""

RESAMPLES = 1000
LARGEST_STEP, SMALLEST_STEP, MOST_STEPS = 1.0, 1e-10, 1000


class Verdict(NamedTuple):
    """A decided game: both names, and the prompt on which the winner's answer was preferred."""

    prompt: int
    winner: str
    loser: str


class Rating(NamedTuple):
    """The rating of a model, the 95 % interval of its difference to the anchor, and its games."""

    model: str
    rating: float
    low: float
    high: float
    wins: int
    losses: int


def rate_models(
    models: Sequence[str], verdicts: Sequence[Verdict], anchor: str, seed: int = 0
) -> list[Rating]:
    """Rate at least two models, best first; the order of models and verdicts changes no bit."""
    names = sorted(models)
    numbers = sorted({verdict.prompt for verdict in verdicts})
    prompts = {prompt: row for row, prompt in enumerate(numbers)}
    games = np.zeros((len(prompts), len(names), len(names)))
    for prompt, winner, loser in verdicts:
        games[prompts[prompt], names.index(winner), names.index(loser)] += 1
    wins, losses = games.sum(axis=(0, 2)).astype(int), games.sum(axis=(0, 1)).astype(int)
    upper = np.triu(np.ones((len(names), len(names))), 1)
    padded = np.concatenate([games, [upper, upper.T]])
    weights = np.random.default_rng(seed).dirichlet(np.ones(len(padded)), RESAMPLES) * len(padded)
    totals = np.tensordot(np.concatenate([np.ones((1, len(padded))), weights]), padded, axes=1)
    logits = _log_odds(totals)
    ratings = ANCHOR_RATING + ELO_SCALE * (logits - logits[:, [names.index(anchor)]])
    low, high = np.quantile(ratings[1:], (0.025, 0.975), axis=0)
    columns = (one.tolist() for one in (ratings[0], low, high, wins, losses))
    rated = [Rating(*row) for row in zip(names, *columns, strict=True)]
    return sorted(rated, key=lambda one: (-one.rating, one.model))


def _log_odds(
    wins: Float64[np.ndarray, "resamples models models"],
) -> Float64[np.ndarray, "resamples models"]:
    """Return the log-odds of largest likelihood, the first of them 0, by Newton's method.

    A step in which differences change by at most 1 always increases the likelihood, as its second
    derivative changes by less than the factor e over it (Bach 2010, EJS 4); larger ones are scaled.
    """
    games = wins + wins.swapaxes(1, 2)
    logits = np.zeros(wins.shape[:2])
    step = np.zeros_like(logits)
    for _ in range(MOST_STEPS):
        chance = 1 / (1 + np.exp(logits[:, None, :] - logits[:, :, None]))
        gradient = (wins - games * chance).sum(axis=2)
        curvature = games * chance * (1 - chance)
        laplacian = np.eye(wins.shape[1]) * curvature.sum(axis=2)[:, :, None] - curvature
        step[:, 1:] = np.linalg.solve(laplacian[:, 1:, 1:], gradient[:, 1:, None])[:, :, 0]
        largest = np.ptp(step, axis=1, keepdims=True)
        logits += step / np.maximum(1.0, largest / LARGEST_STEP)
        if largest.max() < SMALLEST_STEP:
            break
    return logits
