"""CMA-ES: the library's own steps, members by value, and runs that are told again."""

import json
from dataclasses import replace
from pathlib import Path

import cmaes
import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import germline
from germline import noise
from germline.config import Cma, LowRank, SepCma
from germline.engines.master_weights import Masters
from germline.fleet.worker_jobs import ApplyJob, DigestJob, GenerateJob
from germline.generation_loop import generations
from germline.record import RunDirectory
from germline.run import build_run_parts
from germline.run.build_parts import make_engine
from germline.strategies.cma import CmaSearch, CovarianceMatrixAdaptation
from germline.tasks import make_task
from germline.types import Decoding, Example, GermlineError, MeanUpdate, VectorPerturbation
from tests.cma_search import GENERATIONS, fitness, make_search, offsets_of
from tests.remote_engines import killed_at, nearby_fleet, run_digests
from tests.tiny_engines import examples, inprocess
from tests.toy_runs import finish, journal, run, settings

pytestmark = pytest.mark.usefixtures("graded_in_process")


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


# --- told again


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


# --- settings and refusals


@pytest.mark.parametrize(
    ("kind", "dimension", "said"),
    [
        (Cma, 2001, "strategy.kind=cma .* 2,001: use strategy.kind=nes or sep_cma, "),
        (SepCma, 1_000_001, "strategy.kind=sep_cma .* use strategy.kind=nes, "),
        (SepCma, 1, "strategy.kind=sep_cma can search 2 to .* use strategy.kind=nes, "),
    ],
)
def test_a_dimension_too_large_or_too_small_is_refused(kind, dimension, said):
    with pytest.raises(GermlineError, match=said):
        make_search(kind(), dimension)


def test_coordinates_that_do_not_fit_are_refused():
    with pytest.raises(AssertionError):
        make_engine(settings(MIX)).apply(MeanUpdate(0, 0.3, (0.0, 1.0)))  # as a journal holds it
    drawn = inprocess("llama", LowRank())
    member = VectorPerturbation(0, 0, np.zeros(drawn.weights.dimension, dtype=np.float32))
    with pytest.raises(GermlineError, match="cannot be used where directions are drawn"):
        drawn.generate([member], examples(), Decoding(2))


# --- runs


CMA = "strategy={kind: cma, population: 6, sigma: 0.3}"
SEP_CMA = "strategy={kind: sep_cma, population: 6, sigma: 0.3}"
RUNS = {
    "cma on whole tensors": (MIX, CMA, "strategy.sigma_unit=std"),
    "cma on a subspace": ("space={kind: subspace, dimension: 8}", CMA, "strategy.lr_adapt=true"),
    "sep_cma on whole tensors": ("space=full", SEP_CMA),
}


@pytest.fixture(scope="module", params=["cma on a subspace", "sep_cma on whole tensors"])
def whole(request, tmp_path_factory):
    """A run that never stopped, and its settings."""
    return run(tmp_path_factory.mktemp("runs") / "whole", *RUNS[request.param]), RUNS[request.param]


def test_a_journal_holds_what_was_told_and_not_where_that_led(whole):
    folder, _ = whole
    lines = [json.loads(line) for line in journal(folder).splitlines()]
    named = {"checksum", "digest", "generation", "noise_version", "sigma", "utilities"}
    assert all(set(line) == named for line in lines)
    assert [len(line["utilities"]) for line in lines] == [6] * 4
    moves = [entry.update for entry in RunDirectory.open(folder).journal.read()]
    assert all(isinstance(move, MeanUpdate) and move.offsets is None for move in moves)
    assert [row["sigma"] for row in RunDirectory.open(folder).generations()] == [
        line["sigma"] for line in lines
    ]


def test_the_newest_snapshot_serves_and_is_scored_where_the_arithmetic_differs(whole, monkeypatch):
    folder, _ = whole
    expected = germline.evaluate(str(folder))

    def differs(*_arguments: object) -> None:
        raise GermlineError("journal: told again, it differs")

    monkeypatch.setattr(CmaSearch, "recall", differs)
    assert germline.evaluate(str(folder)) == expected
    assert germline.generate(str(folder), ["one"], max_new_tokens=2)
    with pytest.raises(GermlineError, match="told again"):
        germline.replay(folder, 3)


@pytest.mark.parametrize("engines", [1, 3])
def test_any_number_of_engines_gives_the_same_run(engines):
    config = settings(*RUNS["cma on whole tensors"])
    alone = run_digests(config)
    assert run_digests(config, nearby_fleet(config, engines)) == alone
    # Those that are lost are given every move again.
    faults = (killed_at(1, kind=ApplyJob), killed_at(2, 9, kind=GenerateJob))
    assert run_digests(config, nearby_fleet(config, engines, *faults[: engines - 1])) == alone


def test_a_fleet_keeps_no_steps_that_a_snapshot_holds(tmp_path: Path):
    """A step is as large as the searched weights: a long run would keep thousands of models."""
    config = settings(*RUNS["sep_cma on whole tensors"])
    fleet = nearby_fleet(config, 1)

    def kept() -> list[bool]:
        updates = [entry.update for entry in fleet._entries]
        return [isinstance(one, MeanUpdate) and one.offsets is not None for one in updates]

    with build_run_parts(config) as parts:
        for record in generations(parts.method, fleet, parts.batch, parts.decoding, range(4)):
            if record.generation == 2:
                fleet.save_snapshot(tmp_path, 2)
                assert kept() == [False] * 3
    assert kept() == [False, False, False, True]
    # The only engine is rebuilt: from the snapshot, and the one step after it.
    (slot,) = fleet.pool.ready_slots()
    before = fleet.digest()
    fleet.pool.replace(slot, "killed")
    fleet.evaluate_center([Example(0, "a", "", chat=False)], Decoding(1))
    assert fleet.query(DigestJob()) == before


def test_the_population_that_was_left_open_is_written_down(tmp_path):
    config = settings(MIX, "strategy={kind: cma, sigma: 0.3}", "generations=1")
    folder = finish(germline.train(config, tmp_path / "run"))
    assert config.strategy.population is None
    assert RunDirectory.open(folder).config.strategy.population == 4 + int(3 * np.log(72))


def test_a_dimension_too_large_leaves_no_run_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(CovarianceMatrixAdaptation, "LARGEST", 100)
    config = settings("space=full", "strategy=cma")
    with pytest.raises(GermlineError, match="2 to 100 numbers"):
        germline.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
