"""A search by CMA-ES on a quadratic, without a model."""

import numpy as np

from germline.config import Cma, SepCma
from germline.strategies import make_strategy
from germline.strategies.cma import CmaSearch
from germline.types import MeanUpdate

GENERATIONS = 12


def make_search(config: Cma | SepCma, dimension: int = 6, run_seed: int = 3) -> CmaSearch:
    made = make_strategy(config, run_seed=run_seed, generations=GENERATIONS, dimension=dimension)
    assert isinstance(made, CmaSearch)
    return made


def offsets_of(update: MeanUpdate) -> np.ndarray:
    """Return the change of the mean, which an update of this process has."""
    assert update.offsets is not None
    return update.offsets


def fitness(offsets: np.ndarray) -> float:
    return -float((np.arange(1, 1 + len(offsets)) * (offsets - 0.5) ** 2).sum())
