"""The steps of cma and sep_cma are those of the library cmaes, driven directly."""

import cmaes
import numpy as np
import pytest

from germline import noise
from germline.config import Cma, SepCma
from germline.types import VectorPerturbation
from tests.cma_search import GENERATIONS, fitness, make_search, offsets_of

BY_KIND = {"cma": cmaes.CMA, "sep_cma": cmaes.SepCMA}


@pytest.mark.parametrize(
    ("config", "dimension"),
    [
        (Cma(sigma=0.3), 5),
        (Cma(sigma=0.3, population=9), 40),
        (Cma(sigma=0.3, lr_adapt=True), 5),
        (SepCma(sigma=0.3), 40),
    ],
)
def test_means_and_members_are_those_of_the_library_driven_directly(config, dimension):
    ours = make_search(config, dimension)
    more = {"lr_adapt": config.lr_adapt} if isinstance(config, Cma) else {}
    mean, size = np.zeros(dimension), config.population
    theirs = BY_KIND[config.kind](mean=mean, sigma=0.3, population_size=size, seed=1, **more)
    for generation in range(GENERATIONS):
        words = noise.sampling_uniforms(3, generation, config.kind, (0,), 4)[0] * 2.0**32
        theirs.reseed_rng(words.astype(np.uint32))
        points = [theirs.ask() for _ in range(theirs.population_size)]
        population = ours.ask(generation)
        for member, point in zip(population.members, points, strict=True):
            assert isinstance(member, VectorPerturbation)
            assert np.array_equal(member.offsets, (point - theirs.mean).astype(np.float32))
        before = theirs.mean.copy()
        values = [fitness(point) for point in points]
        theirs.tell([(point, -value) for point, value in zip(points, values, strict=True)])
        move = ours.tell(population, np.array(values))
        assert np.array_equal(ours.search.mean, theirs.mean)
        assert np.array_equal(offsets_of(move), (theirs.mean - before).astype(np.float32))
    assert ours.sigma == theirs._sigma != 0.3
