"""Engines that are lost or go wrong: the run is the same, or stops with cause and remedy."""

import pytest

from germline.fleet.worker_jobs import (
    ApplyJob,
    GenerateJob,
    Outcome,
    PackedSnapshot,
    RemoteEngineLost,
    RestoreJob,
)
from germline.fleet.worker_pool import MAX_LOSSES
from germline.run.build_parts import make_engine
from germline.types import GermlineError
from tests.remote_engines import (
    CONFIG,
    EXAMPLES,
    UPDATES,
    Nearby,
    assert_same,
    corrupt,
    corrupted_at,
    digests,
    evaluated,
    fleet_of,
    killed_at,
    local,
    pool,
)


@pytest.fixture(scope="module")
def undisturbed():
    return digests(local())


# --- lost engines


@pytest.mark.parametrize("place", range(0, 9, 2))
@pytest.mark.parametrize("fault", [killed_at, corrupted_at])
def test_a_kill_or_a_flipped_weight_at_any_job_changes_nothing(fault, place, undisturbed):
    engines = pool(2, fault(place))
    assert digests(fleet_of(engines, seed=place)) == undisturbed
    assert engines[0].starts == 2


@pytest.mark.parametrize("shares_disk", [True, False])
def test_a_lost_engine_replays_the_updates_from_the_newest_snapshot(shares_disk, tmp_path):
    engines = pool(2, killed_at(0, kind=GenerateJob))
    fleet, alone = fleet_of(engines, shares_disk=shares_disk), local()
    for generation, update in enumerate(UPDATES[:4]):
        fleet.apply(update)
        alone.apply(update)
        if generation == 1:
            fleet.save_snapshot(tmp_path, generation)
    while len(fleet.pool.ready_slots()) < 2 or engines[0].starts < 2:
        assert_same(evaluated(fleet, 4), evaluated(alone, 4))
    restored = next(job for job in engines[0].jobs if isinstance(job, RestoreJob))
    assert isinstance(restored.snapshots, type(tmp_path) if shares_disk else PackedSnapshot)
    assert engines[0].digest() == alone.digest() == fleet.digest()


def test_an_engine_lost_again_and_again_is_given_up_and_the_others_go_on(undisturbed, caplog):
    engines = pool(2, lambda _engine, _job: RemoteEngineLost("it ended with SIGSEGV"))
    assert digests(fleet_of(engines)) == undisturbed
    assert engines[0].starts == MAX_LOSSES
    assert "lost engine 0: it ended with SIGSEGV; it is started again" in caplog.text
    assert f"after {MAX_LOSSES} times it is given up" in caplog.text


def test_an_engine_that_plays_between_its_losses_is_always_started_again(undisturbed):
    engines = pool(1, killed_at(1, 3, 5, 7, 9, kind=GenerateJob))
    assert digests(fleet_of(engines)) == undisturbed
    assert engines[0].starts == 6 > MAX_LOSSES


def test_losing_every_engine_stops_the_run_with_cause_and_remedy():
    always = killed_at(*range(100))
    fleet = fleet_of(pool(2, always, always))
    for _ in range(2):  # it says so again
        with pytest.raises(
            GermlineError, match=f"lost {MAX_LOSSES} times in a row.*killed.*resume"
        ):
            evaluated(fleet)


def test_a_cell_that_kills_whoever_plays_it_stops_the_run():
    """The other cells are played in between, and do not make it go on for ever."""
    poison = EXAMPLES[-1].index

    def fault(_engine, job) -> Outcome | None:
        poisoned = isinstance(job, GenerateJob) and any(one.index == poison for one in job.examples)
        return RemoteEngineLost("out of memory") if poisoned else None

    with pytest.raises(GermlineError, match="out of memory"):
        evaluated(fleet_of(pool(2, fault, fault)))


# --- deviating engines


@pytest.mark.parametrize("engines", [2, 3])
def test_an_update_that_goes_wrong_on_one_engine_is_made_good(engines, undisturbed):
    """Of three, two are right; two rebuild both and apply the update again."""
    team = pool(engines, corrupted_at(1, kind=ApplyJob))
    assert digests(fleet_of(team)) == undisturbed
    assert [one.starts for one in team] == ([2, 2] if engines == 2 else [2, 1, 1])


def test_engines_that_never_agree_or_that_generating_always_changes_stop_the_run():
    always = range(100)
    fleet = fleet_of(pool(2, corrupted_at(*always, kind=ApplyJob)))
    fleet.apply(UPDATES[0])
    with pytest.raises(GermlineError, match=r"disagree .* after generation 0.*fleet=local"):
        fleet.digest()
    traces = [corrupted_at(*always, kind=GenerateJob) for _ in range(2)]
    with pytest.raises(GermlineError, match="changed their weights while they generated"):
        evaluated(fleet_of(pool(2, *traces)))


def test_engines_that_loaded_different_weights_are_refused():
    def load():
        engine = make_engine(CONFIG)
        corrupt(engine)
        return engine

    engines = [Nearby("engine 0"), Nearby("engine 1", load=load)]
    with pytest.raises(GermlineError, match="loaded different weights"):
        fleet_of(engines)
    assert all(one.engine is None for one in engines)
