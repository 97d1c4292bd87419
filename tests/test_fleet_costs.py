"""What a fleet costs: engines do not wait for the driver, and its simulation adds up."""

import threading
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks import fleet_scaling
from benchmarks.scaling_out import Case, Gpu, generate
from benchmarks.shapes import QWEN
from benchmarks.simulated_cluster import microbatch_seconds, on, simulated, traffic
from benchmarks.simulated_fleet import Costs, SimulatedFleet
from benchmarks.variant_training import begin_training
from germline.engines.master_weights import Masters
from germline.fleet.engine_queries import DimensionQuery
from germline.fleet.worker_pool import WorkerPool
from germline.optimizers import Sgd
from germline.types import TensorInfo
from tests import remote_engines
from tests.toy_runs import settings

SECONDS = np.random.default_rng(0).lognormal(0.0, 0.5, 40).tolist()
DEAR = Costs(
    send=0.01, receive=0.02, ask=0.001, travel=0.004, grade=0.03, tell=0.1, look=0.2, update=0.5,
    agree=0.2, rebuild=3.0, resync=1.0,
)  # fmt: skip


def microbatches(seconds=SECONDS):
    """Return microbatches that take the same on every engine."""
    return [lambda _engine, one=one: one for one in seconds]


def test_an_engine_has_its_next_job_before_anyone_looks_at_what_it_did():
    engines = remote_engines.pool(1)
    pool = WorkerPool(engines, remote_engines.first_one_first)
    pool.wait_ready()
    busy = []
    for key, slot, _ in pool.dispatch(dict.fromkeys("abc", DimensionQuery())):
        busy.append((key, slot.job is not None))
    assert busy == [("a", True), ("b", True), ("c", False)]


def test_a_digest_hashes_as_many_tensors_at_once_as_torch_has_threads(monkeypatch):
    monkeypatch.setattr("germline.engines.digests.FEW", 0)
    together = threading.Barrier(3)

    class Meeting(torch.Tensor):
        def detach(self):
            together.wait(timeout=600)
            return self.as_subclass(torch.Tensor).detach()

    plain = {name: torch.full((4,), 1.0 + place) for place, name in enumerate("abc")}
    infos = [TensorInfo(name, (4,), "other", None) for name in plain]
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        meeting = {name: one.as_subclass(Meeting) for name, one in plain.items()}
        found = Masters(meeting, infos, None, Sgd(), "constant").digest()
    finally:
        torch.set_num_threads(before)
    assert found == Masters(plain, infos, None, Sgd(), "constant").digest()


def test_training_here_and_in_a_process_reach_the_same_digest_and_count_both_processors():
    with ExitStack() as cleanup:
        here, there = (
            begin_training(settings(), name, cleanup) for name in ("here", "processes-1")
        )
        for one in (here, there):
            one.step()
        assert here.digest == there.digest
        assert min(*here.processor, *there.processor) > 0
        assert there.processors() > here.processors()  # the engine's own are in it


def test_one_engine_without_costs_takes_the_sum_of_its_cells():
    fleet = SimulatedFleet(1, Costs())
    assert fleet.generation(microbatches()) == pytest.approx(sum(SECONDS))


def test_one_engine_takes_its_cells_and_every_cost_one_after_another():
    costs = Costs(send=0.01, receive=0.02, tell=0.1, look=0.2, update=0.5, agree=0.3)
    fleet = SimulatedFleet(1, costs)
    each = len(SECONDS) * (costs.send + costs.receive)
    once = costs.tell + costs.look + costs.update + costs.agree
    assert fleet.generation(microbatches()) == pytest.approx(sum(SECONDS) + each + once)


def test_without_costs_more_engines_are_never_slower_on_equal_cells():
    seconds = [
        SimulatedFleet(n, Costs()).generation(microbatches([1.0] * 40)) for n in range(1, 45)
    ]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("engines", [2, 3, 7, 39, 50])
def test_no_fleet_beats_its_longest_cell_or_an_even_share(engines):
    seconds = SimulatedFleet(engines, Costs()).generation(microbatches())
    least = max(max(SECONDS), sum(SECONDS) / engines)
    assert least - 1e-9 <= seconds <= sum(SECONDS) / engines + max(SECONDS)


@pytest.mark.parametrize("engines", [1, 3, 64])
def test_every_cell_is_played_once_and_phases_add_up_to_the_clock(engines):
    fleet = SimulatedFleet(engines, DEAR)
    for _ in range(3):
        fleet.generation(microbatches())
    spent = fleet.spent
    assert spent.microbatches == 3 * len(SECONDS)
    assert spent.generating == pytest.approx(3 * sum(SECONDS))
    assert spent.wasted == 0
    assert sum(spent.phases.values()) == pytest.approx(spent.wall)
    assert spent.driver < spent.wall
    assert spent.phases["apply"] >= 3 * DEAR.update


def test_what_a_lost_engine_was_at_is_played_by_others():
    lost = iter([0.3])

    def loses(begin, _end, engine):
        return begin + next(lost, 0) if engine == 1 and (begin < 0.5) else None

    fleet = SimulatedFleet(2, DEAR, loses=loses)
    fleet.generation(microbatches([1.0] * 6))
    fleet.generation(microbatches([1.0] * 6))
    spent = fleet.spent
    assert (spent.losses, spent.microbatches) == (1, 12)
    assert spent.wasted == pytest.approx(0.3)
    assert spent.phases["resync"] == pytest.approx(DEAR.resync)


def test_a_fleet_that_lost_everyone_waits_for_a_fresh_engine():
    fleet = SimulatedFleet(
        1, Costs(rebuild=7.0), loses=lambda begin, _end, _engine: begin + 0.5 if begin < 1 else None
    )
    assert fleet.generation(microbatches([2.0])) == pytest.approx(0.5 + 7.0 + 2.0)


def test_a_quorum_leaves_a_straggler_behind_after_the_grace():
    seconds = [1.0] * 9 + [100.0]
    whole = SimulatedFleet(10, Costs()).generation(microbatches(seconds))
    fleet = SimulatedFleet(10, Costs(), quorum=0.9)
    closed = fleet.generation(microbatches(seconds))
    assert whole == pytest.approx(100.0)
    assert closed == pytest.approx(1.5)
    assert fleet.spent.microbatches == 9
    assert fleet.spent.wasted == pytest.approx(100.0)


def test_a_quorum_waits_for_what_is_nearly_done():
    fleet = SimulatedFleet(10, Costs(), quorum=0.9)
    assert fleet.generation(microbatches([1.0] * 9 + [1.4])) == pytest.approx(1.4)
    assert fleet.spent.microbatches == 10


def test_rows_of_full_length_take_what_the_law_of_scaling_out_says():
    case = Case(QWEN["7B"], gpus=1, per_engine=1, members=16)
    full = np.full(case.rows, case.new_tokens)
    # That law takes keys and values at half of their length throughout.
    assert microbatch_seconds(case, full, Gpu()) == pytest.approx(generate(case), rel=0.02)


def test_shorter_rows_shorten_a_cell_and_its_longest_row_decides_its_steps():
    case, some = Case(QWEN["7B"], gpus=1, per_engine=1), np.full(1024, 50)
    short = microbatch_seconds(case, some, Gpu())
    one_long = microbatch_seconds(case, np.append(some[1:], 256), Gpu())
    assert short < one_long < microbatch_seconds(case, np.full(1024, 256), Gpu())


def test_a_seed_says_everything_a_simulation_does():
    setting = on("1.5B", 16, members=256)
    first, again = (simulated(setting, 2, seed=3) for _ in range(2))
    assert first == again
    assert simulated(setting, 2, seed=4) != first


@pytest.mark.parametrize("model", ["1.5B", "7B", "72B"])
@pytest.mark.parametrize("engines", [8, 512])
def test_names_stay_below_ten_kilobytes_per_member(model, engines):
    setting = on(model, engines)
    names, everything = traffic(setting)
    assert names / setting.case.members < 10_000
    assert names < everything


def test_the_update_is_what_breaks_first_and_one_kernel_mends_it():
    setting = on("7B", 64, members=512)
    spent = simulated(setting, 1)
    mended = simulated(replace(setting, fused=True), 1)
    assert mended.phases["apply"] < spent.phases["apply"] / 10
    assert mended.phases["generate"] == pytest.approx(spent.phases["generate"])


def test_a_table_has_a_row_for_every_case_and_no_column_too_few():
    head, rule, *rows = fleet_scaling.stragglers(1)
    assert len(rows) == 9
    assert {row.count("|") for row in (rule, *rows)} == {head.count("|")}
