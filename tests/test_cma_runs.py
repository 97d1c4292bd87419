"""Runs by CMA-ES: stopped, resumed, replayed and played by several engines to the same bits."""

import json
from pathlib import Path

import numpy as np
import pytest

import germline
from germline.config import Config
from germline.fleet import LocalFleet
from germline.fleet.remote_fleet import RemoteFleet
from germline.fleet.worker_jobs import ApplyJob, DigestJob, GenerateJob
from germline.fleet.worker_pool import WorkerPool
from germline.generation_loop import generations
from germline.protocols import Fleet
from germline.record import RunDirectory
from germline.run import build_run_parts
from germline.run.build_parts import make_engine
from germline.strategies.cma import CmaSearch, CovarianceMatrixAdaptation
from germline.tasks import make_task
from germline.types import Decoding, Example, GermlineError, MeanUpdate
from tests.remote_engines import Chance, Fault, Nearby, killed_at
from tests.toy_runs import GradedHere, finish, journal, run, settings, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")

MIX = "space={kind: full, include: ['*mix*']}"
CMA = "strategy={kind: cma, population: 6, sigma: 0.3}"
SEP_CMA = "strategy={kind: sep_cma, population: 6, sigma: 0.3}"
RUNS = {
    "cma on whole tensors": (MIX, CMA, "strategy.sigma_unit=std"),
    "cma on an adapter": ("space=lora", CMA),
    "cma on a subspace": ("space={kind: subspace, dimension: 8}", CMA, "strategy.lr_adapt=true"),
    "sep_cma on whole tensors": ("space=full", SEP_CMA),
}
NANO = (
    "engine=inprocess",
    "generations=2",
    "task={kind: arithmetic, max_new_tokens: 4}",
    "space={kind: full, include: ['model.layers.3.*norm*']}",
    "strategy={kind: cma, population: 6, sigma: 0.3}",
)


@pytest.fixture(scope="module", params=RUNS)
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


def test_a_stopped_and_resumed_run_equals_one_that_never_stopped(whole, tmp_path):
    folder, overrides = whole
    stopped = stopped_after(germline.train(settings(*overrides), tmp_path / "stopped"), 3)
    assert journal(stopped) != journal(folder)
    assert journal(finish(germline.resume(stopped))) == journal(folder)


def test_a_replay_from_the_journal_alone_has_the_same_digests(whole):
    folder, _ = whole
    entries = RunDirectory.open(folder).journal.read()
    assert len({entry.digest for entry in entries}) == 4
    for generation in (0, 3):
        assert germline.replay(folder, generation) == entries[generation].digest


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


def test_a_language_model_goes_on_and_is_rebuilt_to_the_same_bits(tmp_path):
    config = settings(*NANO)
    whole = finish(germline.train(config, tmp_path / "whole"))
    stopped = stopped_after(germline.train(config, tmp_path / "stopped"), 1)
    assert journal(finish(germline.resume(stopped))) == journal(whole)
    directory = RunDirectory.open(whole)
    last = directory.journal.read()[1]
    assert germline.replay(whole, 1) == last.digest != directory.base_digest


def digests(fleet: Fleet, config: Config) -> list[str]:
    with build_run_parts(config) as parts:
        loop = generations(parts.method, fleet, parts.batch, parts.decoding, range(4))
        return [record.digest for record in loop]


def remote(config: Config, engines: int, *faults: Fault) -> RemoteFleet:
    given = [*faults, *[None] * (engines - len(faults))]
    nearby = [
        Nearby(f"engine {number}", fault, lambda: make_engine(config))
        for number, fault in enumerate(given)
    ]
    return RemoteFleet(
        WorkerPool(nearby, Chance()), GradedHere(make_task(config.task)), config.microbatch
    )


@pytest.mark.parametrize("engines", [1, 2, 3])
def test_any_number_of_engines_gives_the_same_run(engines):
    config = settings(*RUNS["cma on whole tensors"])
    alone = LocalFleet(make_engine(config), GradedHere(make_task(config.task)), config.microbatch)
    assert digests(remote(config, engines), config) == digests(alone, config)


def test_engines_that_are_lost_are_given_every_move_again():
    config = settings(*RUNS["cma on whole tensors"])
    alone = LocalFleet(make_engine(config), GradedHere(make_task(config.task)), config.microbatch)
    lost = remote(config, 2, killed_at(1, kind=ApplyJob), killed_at(2, 9, kind=GenerateJob))
    assert digests(lost, config) == digests(alone, config)


def test_a_fleet_keeps_no_steps_that_a_snapshot_holds(tmp_path: Path):
    """A step is as large as the searched weights: a long run would keep thousands of models."""
    config = settings(*RUNS["sep_cma on whole tensors"])
    fleet = remote(config, 1)

    def kept() -> list[bool]:
        updates = [entry.update for entry in fleet._entries]
        return [isinstance(one, MeanUpdate) and one.offsets is not None for one in updates]

    with build_run_parts(config) as parts:
        for record in generations(parts.method, fleet, parts.batch, parts.decoding, range(4)):
            if record.generation == 2:
                fleet.save_snapshot(tmp_path, 2, keep=1)
                assert kept() == [False] * 3
    assert kept() == [False, False, False, True]
    # The only engine is rebuilt: from the snapshot, and the one step after it.
    (slot,) = fleet.pool.ready_slots()
    before = fleet.digest()
    fleet.pool.replace(slot, "killed")
    fleet.evaluate_center([Example(0, "a", "", chat=False)], Decoding(1))
    assert fleet.query(DigestJob()) == before


@pytest.mark.slow
def test_engine_processes_go_on_from_what_was_told(tmp_path: Path):
    one = RUNS["cma on whole tensors"]
    alone = run(tmp_path / "alone", *one)
    several = settings(*one, "fleet.engines=2")
    stopped = stopped_after(germline.train(several, tmp_path / "stopped"), 2)
    assert journal(finish(germline.resume(stopped))) == journal(alone)


def test_the_population_that_was_left_open_is_written_down(tmp_path):
    config = settings(MIX, "strategy={kind: cma, sigma: 0.3}", "generations=1")
    folder = finish(germline.train(config, tmp_path / "run"))
    assert config.strategy.population is None
    assert RunDirectory.open(folder).config.strategy.population == 4 + int(3 * np.log(72))


@pytest.mark.parametrize("engines", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_dimension_too_large_leaves_no_run_behind(engines, tmp_path, monkeypatch):
    monkeypatch.setattr(CovarianceMatrixAdaptation, "LARGEST", 100)
    config = settings("space=full", f"fleet.engines={engines}", "strategy=cma")
    with pytest.raises(GermlineError, match="up to 100 numbers"):
        germline.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
