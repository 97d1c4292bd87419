"""Evaluations made by hand, for tests of what is made of them."""

import numpy as np

from germline.types import Evaluation


def of_rewards(rewards):
    """Return the evaluation of members x examples with these rewards and nothing played."""
    return Evaluation(np.asarray(rewards, dtype=np.float64), (), 0, 0.0)


def of_fitness(fitness):
    """Return the evaluation of members whose one reward is their fitness."""
    return of_rewards(np.asarray(fitness, dtype=np.float64)[:, None])
