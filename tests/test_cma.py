"""CMA-ES: the library's own steps, members by value, and runs that are told again."""

from dataclasses import replace

import cmaes
import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from germline import noise
from germline.config import Cma, LowRank, SepCma
from germline.engines.master_weights import Masters
from germline.run import build_run_parts
from germline.run.build_parts import make_engine
from germline.strategies.cma import CmaSearch
from germline.tasks import make_task
from germline.types import Decoding, GermlineError, MeanUpdate, VectorPerturbation
from tests.cma_search import GENERATIONS, fitness, make_search, offsets_of
from tests.tiny_engines import examples, inprocess
from tests.toy_runs import settings

MIX = "space={kind: full, include: ['*mix*']}"
SPACES = (MIX, "space=full", "space=lora", "space={kind: subspace, dimension: 8}")


def learned(strategy: CmaSearch, span: range = range(GENERATIONS)) -> list[MeanUpdate]:
    """Climb, each member being worth what it is where the mean and its offsets put it."""
    moves = []
    for generation in span:
        population = strategy.ask(generation)
        mean = strategy.search.mean
        found = [
            mean + one.offsets for one in population.members if isinstance(one, VectorPerturbation)
        ]
        moves.append(strategy.tell(population, np.array([fitness(one) for one in found])))
    return moves


def refused(*overrides: str) -> str:
    with pytest.raises(GermlineError) as caught:
        build_run_parts(settings(*overrides)).close()
    return str(caught.value)


# --- the library's own steps


def test_members_are_drawn_as_the_library_draws_them_in_many_dimensions():
    """A product of two matrices is left out for each of them, and not a bit changes."""
    ours = make_search(Cma(), 150).search
    theirs = cmaes.CMA(mean=np.zeros(150), sigma=0.02, seed=1)
    covariance = np.cov(noise.draw_noise_rows(0, 0, range(150), "columns", 400).astype(np.float64))
    with threadpool_limits(1):
        for one in (ours, theirs):
            one._C = covariance.copy()
            one.reseed_rng(7)
        assert np.array_equal(ours.ask(), theirs.ask())


def test_one_thread_draws_and_learns(monkeypatch):
    strategy = make_search(Cma())
    threads: list[int] = []

    def counting(_library, call):
        def counted(*arguments):
            blas = [one for one in threadpool_info() if one["user_api"] == "blas"]
            threads.extend(one["num_threads"] for one in blas)
            return call(*arguments)

        return counted

    for name in ("ask", "tell"):
        call = getattr(strategy.search, name)
        monkeypatch.setattr(strategy.search, name, counting(strategy.search, call))
    with threadpool_limits(2, user_api="blas"):
        learned(strategy, range(1))
    assert set(threads) == {1}


@pytest.mark.parametrize("kind", [Cma, SepCma])
def test_the_step_size_adapts_and_the_top_is_found(kind):
    strategy = make_search(kind(sigma=0.3))
    moves = learned(strategy, range(150))
    assert fitness(strategy.search.mean) > 1e-6 * fitness(np.zeros(6))
    assert moves[-1].sigma < 1e-2 * max(move.sigma for move in moves)


@pytest.mark.parametrize("kind", [Cma, SepCma])
def test_the_covariance_learns_as_fast_as_is_set(kind):
    shapes = []
    for rate in (0.0, 0.5, 1.0):
        strategy = make_search(kind(sigma=0.3, covariance_rate=rate))
        learned(strategy)
        shapes.append(np.array(strategy.search._C))
    start = make_search(kind()).search._C
    away = [float(np.abs(shape - start).max()) for shape in shapes]
    assert away[0] == 0 < away[1] < away[2]


def test_equally_good_members_move_neither_the_mean_nor_the_step_size():
    strategy = make_search(Cma(sigma=0.3))
    move = strategy.tell(strategy.ask(0), np.zeros(strategy.population))
    assert not offsets_of(move).any()
    assert (strategy.sigma, strategy.search.generation) == (0.3, 0)
    assert strategy.ask(1).generation == 1


def test_only_the_order_of_utilities_is_told():
    one, other = make_search(Cma()), make_search(Cma())
    utilities = noise.weight_noise(0, 0, 0, "utilities", one.population).astype(np.float64)
    moved = one.tell(one.ask(0), utilities)
    assert np.array_equal(
        offsets_of(moved), offsets_of(other.tell(other.ask(0), np.exp(utilities)))
    )


def test_another_run_seed_or_generation_has_other_members():
    asked = [make_search(Cma(), run_seed=seed).ask(0) for seed in (0, 1)]
    later = make_search(Cma(), run_seed=0)
    later.tell(later.ask(0), np.zeros(later.population))
    offsets = [
        member.offsets.tobytes()
        for population in (*asked, later.ask(1))
        for member in population.members
        if isinstance(member, VectorPerturbation)
    ]
    assert len(set(offsets)) == 3 * later.population


# --- told again


def test_told_again_it_says_the_same_and_asks_for_the_same():
    strategy, again = make_search(Cma(sigma=0.3)), make_search(Cma(sigma=0.3))
    moves = learned(strategy)
    recalled = again.recall([replace(move, offsets=None) for move in moves])
    for one, other in zip(recalled, moves, strict=True):
        assert one == other
        assert np.array_equal(offsets_of(one), offsets_of(other))
    assert again.ask(GENERATIONS) == strategy.ask(GENERATIONS)


def test_another_arithmetic_is_noticed_where_it_first_differs():
    strategy, again = make_search(Cma(sigma=0.3)), make_search(Cma(sigma=0.3))
    moves = learned(strategy)
    moves[5] = replace(moves[5], sigma=float(np.nextafter(moves[5].sigma, 1)))
    with pytest.raises(GermlineError, match=r"generation 5 has step size .* export its newest"):
        again.recall(moves)


# --- what is served and applied


def test_members_and_moves_count_in_the_unit_of_each_tensor():
    weights = make_engine(settings(MIX, "strategy.sigma_unit=std")).weights
    assert isinstance(weights, Masters)
    offsets = noise.weight_noise(0, 0, 0, "offsets", weights.dimension)
    before = {name: tensor.clone() for name, tensor in weights.state().items()}
    weights.apply(MeanUpdate(0, 0.3, (0.0, 1.0), offsets))
    first = 0
    for info in weights.searched:
        unit, size = np.float32(weights.units[info.name]), before[info.name].numel()
        away = torch.from_numpy(offsets[first : first + size] * unit).reshape(info.shape)
        displaced = weights.displacements([VectorPerturbation(0, 0, offsets)], info)
        assert torch.equal(displaced, away[None])
        assert torch.equal(weights.tensors[info.name], before[info.name] + away)
        first += size
    assert first == weights.dimension
    assert len({weights.units[info.name] for info in weights.searched}) == 2


@pytest.mark.parametrize("space", SPACES)
def test_a_member_by_value_plays_as_the_center_does_once_it_has_moved_there(space):
    config = settings(space, "task.stop=[]")
    engine, moved = make_engine(config), make_engine(config)
    offsets = noise.weight_noise(0, 0, 0, "offsets", engine.weights.dimension)
    moved.apply(MeanUpdate(0, 0.3, (0.0, 1.0), offsets))
    task = make_task(config.task)
    with build_run_parts(config) as parts:
        examples, decoding = task.examples("train")[:3], parts.decoding
    played = engine.generate([None, VectorPerturbation(0, 0, offsets)], examples, decoding)
    assert played[1] == moved.generate([None], examples, decoding)[0] != played[0]


def test_coordinates_of_another_model_are_refused():
    engine = make_engine(settings(MIX))
    with pytest.raises(GermlineError, match="5 coordinates were given, but the space searches 72"):
        engine.apply(MeanUpdate(0, 0.3, (0.0, 1.0), np.zeros(5, dtype=np.float32)))


def test_a_move_as_a_journal_holds_it_cannot_be_applied():
    engine = make_engine(settings(MIX))
    with pytest.raises(GermlineError, match="let the strategy replay it first"):
        engine.apply(MeanUpdate(0, 0.3, (0.0, 1.0)))


def test_coordinates_in_a_space_of_directions_are_refused():
    engine = inprocess("llama", LowRank())
    member = VectorPerturbation(0, 0, np.zeros(engine.weights.dimension, dtype=np.float32))
    with pytest.raises(GermlineError, match="cannot be used where directions are drawn"):
        engine.generate([member], examples(), Decoding(2))


# --- settings and refusals


def test_a_dimension_too_large_is_refused_with_what_would_do():
    message = refused("space=full", "strategy=cma", "engine=inprocess")
    assert "strategy.kind=cma can search 2 to 2,000 numbers, and the space has 919,552" in message
    for remedy in ("nes or sep_cma", "space.dimension=100", "space.include"):
        assert remedy in message
    with pytest.raises(GermlineError, match="sep_cma can search 2 to 1,000,000 numbers"):
        make_search(SepCma(), 1_000_001)


def test_one_number_is_too_few():
    with pytest.raises(GermlineError, match="and the space has 1:"):
        make_search(SepCma(), 1)


def test_generations_are_told_one_after_another():
    strategy = make_search(Cma())
    with pytest.raises(GermlineError, match=r"next generation is 0, not 1"):
        strategy.ask(1)
    population = strategy.ask(0)
    strategy.tell(population, np.zeros(strategy.population))
    with pytest.raises(GermlineError, match=r"next generation is 1, not 0"):
        strategy.tell(population, np.zeros(strategy.population))
