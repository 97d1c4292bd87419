"""Engines elsewhere: whatever order they answer in, die in or go wrong in, the run is the same."""

import math

import numpy as np
import pytest
import torch

from germline.checkpoint import snapshots
from germline.config import Cell
from germline.fleet import LocalFleet
from germline.fleet.crew import FALLS, Lost, Outcome, Raised
from germline.fleet.jobs import Apply, Digest, Play, Restore, SaveSnapshot
from germline.protocols import Fleet
from germline.run import assemble
from germline.run.assembly import decoding, make_engine, make_task
from germline.strategies import make_strategy
from germline.training import generations
from germline.types import GermlineError
from tests.remote_engines import CONFIG, Nearby, corrupt, corrupted_at, fleet_of, killed_at
from tests.toy_runs import GradedHere, settings

TASK = make_task(CONFIG.task)
EXAMPLES = TASK.examples("train")[:7]
DECODING = decoding(CONFIG, TASK)
STRATEGY = make_strategy(CONFIG.strategy, run_seed=0, generations=9)
UPDATES = [
    STRATEGY.tell(STRATEGY.ask(generation), np.array([1.0, -1.0, 0.5, -0.5, 0.0, 0.0]))
    for generation in range(6)
]


def local():
    return LocalFleet(make_engine(CONFIG), GradedHere(TASK), CONFIG.cell)


def crew(count, *faults):
    """Name engines and give the first of them faults."""
    given = [*faults, *[None] * (count - len(faults))]
    return [Nearby(f"engine {number}", fault) for number, fault in enumerate(given)]


def evaluated(fleet, generation=0):
    return fleet.evaluate(STRATEGY.ask(generation), EXAMPLES, DECODING)


def assert_same(one, other):
    assert one.rewards.tobytes() == other.rewards.tobytes()
    assert one.rollouts == other.rollouts
    assert one.tokens == other.tokens


def digests(fleet, count=4):
    """Run the bare loop and return what decides a run."""
    with assemble(CONFIG) as parts:
        loop = generations(
            parts.strategy, parts.shape, fleet, parts.batch, parts.decoding, range(count)
        )
        return [(record.digest, record.fitness) for record in loop]


@pytest.fixture(scope="module")
def undisturbed():
    return digests(local())


def test_it_keeps_the_contract():
    assert isinstance(fleet_of(crew(2)), Fleet)


@pytest.mark.parametrize("engines", [1, 2, 3, 5])
def test_any_number_of_engines_gives_the_evaluation_of_one_here(engines):
    fleet = fleet_of(crew(engines))
    assert_same(evaluated(fleet), evaluated(local()))
    assert_same(
        fleet.evaluate_centre(EXAMPLES, DECODING), local().evaluate_centre(EXAMPLES, DECODING)
    )


@pytest.mark.parametrize("engines", [1, 2, 3])
def test_any_number_of_engines_gives_the_same_run(engines, undisturbed):
    assert digests(fleet_of(crew(engines), seed=engines)) == undisturbed


def test_every_engine_applies_every_update_itself():
    engines = crew(3)
    fleet, alone = fleet_of(engines), local()
    for update in UPDATES[:3]:
        fleet.apply(update)
        alone.apply(update)
        assert fleet.digest() == alone.digest()
    assert {one.engine.weights.digest() for one in engines} == {alone.digest()}


def test_updates_need_not_be_asked_about_one_by_one():
    fleet, alone = fleet_of(crew(2)), local()
    for update in UPDATES[:3]:
        fleet.apply(update)
        alone.apply(update)
    assert_same(evaluated(fleet, 3), evaluated(alone, 3))
    assert fleet.digest() == alone.digest()


def test_the_next_cell_goes_to_whoever_is_free():
    """The first engine answers only when it is the last one at work."""
    engines = crew(2)

    def fast_one_first(remotes):
        last = max(remotes, key=lambda one: one.name)
        return [(last, last.outcome())]

    fleet = fleet_of(engines)
    fleet.crew._wait = fast_one_first
    evaluated(fleet)
    played = [sum(isinstance(job, Play) for job in one.jobs) for one in engines]
    assert played == [1, 8]  # 6 members x 7 examples in cells of 2 x 3


def test_large_cells_are_played_first():
    engines = crew(1)
    fleet_of(engines).evaluate(STRATEGY.ask(0), EXAMPLES, DECODING)
    sizes = [len(job.examples) for job in engines[0].jobs if isinstance(job, Play)]
    assert sizes == [3] * 6 + [1] * 3


# --- lost engines


@pytest.mark.parametrize("place", range(0, 9, 2))
def test_a_kill_at_any_job_changes_nothing(place, undisturbed):
    engines = crew(2, killed_at(place))
    assert digests(fleet_of(engines, seed=place)) == undisturbed
    assert engines[0].starts == 2


def test_kills_at_random_jobs_of_all_engines_change_nothing(undisturbed):
    random = np.random.default_rng(0)

    def sometimes(_engine, _job) -> Outcome | None:
        return Lost("killed") if random.random() < 0.15 else None

    engines = crew(3, sometimes, sometimes, sometimes)
    assert digests(fleet_of(engines)) == undisturbed
    assert sum(one.starts for one in engines) > 6


def test_a_lost_engine_comes_back_with_the_weights_of_its_peers():
    engines = crew(2, killed_at(0, kind=Play))
    fleet, alone = fleet_of(engines), local()
    for update in UPDATES[:3]:
        fleet.apply(update)
        alone.apply(update)
    for _ in range(5):
        evaluated(fleet)
    assert engines[0].engine.weights.digest() == alone.digest() == fleet.digest()
    assert engines[0].starts == 2
    # It took over a peer's state instead of replaying: the peer wrote one, and it is gone again.
    assert any(isinstance(job, SaveSnapshot) for job in engines[1].jobs)
    folder = next(job.folder for job in engines[0].jobs if isinstance(job, Restore))
    assert folder is not None
    assert not folder.exists()


def test_without_a_peer_the_updates_are_replayed_from_the_newest_snapshot(tmp_path):
    engines = crew(1, killed_at(0, kind=Play))
    fleet, alone = fleet_of(engines), local()
    for generation, update in enumerate(UPDATES[:4]):
        fleet.apply(update)
        alone.apply(update)
        if generation == 1:
            fleet.save_snapshot(tmp_path, generation, keep=1)
    assert_same(evaluated(fleet, 4), evaluated(alone, 4))
    restored = next(job for job in engines[0].jobs if isinstance(job, Restore))
    assert restored.folder == tmp_path
    assert fleet.digest() == alone.digest()


def test_a_peer_that_cannot_write_its_state_costs_only_time(undisturbed):
    def no_space(_engine, job) -> Outcome | None:
        full = GermlineError("no space left on the device")
        return Raised(full) if isinstance(job, SaveSnapshot) else None

    engines = crew(2, killed_at(5), no_space)
    assert digests(fleet_of(engines)) == undisturbed


def test_an_engine_lost_again_and_again_is_given_up_and_the_others_go_on(undisturbed, caplog):
    engines = crew(2, lambda _engine, _job: Lost("it ended with SIGSEGV"))
    assert digests(fleet_of(engines)) == undisturbed
    assert engines[0].starts == FALLS
    assert "lost engine 0: it ended with SIGSEGV; it is started again" in caplog.text
    assert f"after {FALLS} times it is given up" in caplog.text


def test_losing_every_engine_stops_the_run_with_cause_and_remedy():
    always = killed_at(*range(100))
    with pytest.raises(GermlineError) as caught:
        evaluated(fleet_of(crew(2, always, always)))
    assert f"every engine was lost {FALLS} times in a row" in str(caught.value)
    assert "killed" in str(caught.value)
    assert "then resume the run" in str(caught.value)


def test_a_cell_that_kills_whoever_plays_it_stops_the_run():
    """The other cells are played in between, and do not make it go on for ever."""
    poison = EXAMPLES[-1]

    def fault(_engine, job) -> Outcome | None:
        return Lost("out of memory") if isinstance(job, Play) and poison in job.examples else None

    with pytest.raises(GermlineError, match="out of memory"):
        evaluated(fleet_of(crew(2, fault, fault)))


def test_a_fleet_whose_engines_are_all_given_up_says_so_again():
    fleet = fleet_of(crew(1, killed_at(*range(100))))
    for _ in range(2):
        with pytest.raises(GermlineError, match="every engine was lost"):
            evaluated(fleet)


# --- deviating engines


def test_what_a_deviating_engine_played_is_played_again():
    engines = crew(2, corrupted_at(2, kind=Play))
    assert_same(evaluated(fleet_of(engines)), evaluated(local()))
    assert engines[0].starts == 2


@pytest.mark.parametrize("place", range(0, 12, 2))
def test_a_weight_that_flips_at_any_job_changes_nothing(place, undisturbed):
    fleet = fleet_of(crew(2, corrupted_at(place)), seed=place)
    assert digests(fleet) == undisturbed


@pytest.mark.parametrize("engines", [2, 3])
def test_an_update_that_goes_wrong_on_one_engine_is_made_good(engines, undisturbed):
    """Of three, two are right; two rebuild both and apply the update again."""
    team = crew(engines, corrupted_at(1, kind=Apply))
    assert digests(fleet_of(team)) == undisturbed
    assert [one.starts for one in team] == ([2, 2] if engines == 2 else [2, 1, 1])


def test_engines_that_never_agree_stop_the_run():
    def drift(engine, job) -> Outcome | None:
        if isinstance(job, Apply):
            corrupt(engine.engine)
        return None

    fleet = fleet_of(crew(2, drift))
    fleet.apply(UPDATES[0])
    with pytest.raises(GermlineError, match=r"disagree .* after generation 0.*fleet\.engines=1"):
        fleet.digest()


def test_engines_that_playing_always_changes_stop_the_run():
    def trace(engine, job) -> Outcome | None:
        if isinstance(job, Play):
            corrupt(engine.engine)
        return None

    with pytest.raises(GermlineError, match="changed their weights while they played"):
        evaluated(fleet_of(crew(2, trace, trace)))


def test_engines_that_loaded_different_weights_are_refused():
    other = settings("space=full", "strategy.optimizer=adam", "engine=toy")

    def load():
        engine = make_engine(other)
        corrupt(engine)
        return engine

    engines = [Nearby("engine 0"), Nearby("engine 1", load=load)]
    with pytest.raises(GermlineError, match="loaded different weights"):
        fleet_of(engines)
    assert all(one.engine is None for one in engines)


# --- errors


def refusing(_engine, job) -> Outcome | None:
    error = GermlineError("task: the longest prompt is too long")
    return Raised(error) if isinstance(job, Play) else None


def test_an_error_of_a_job_is_raised_here_and_nobody_is_started_again():
    engines = crew(2, refusing, refusing)
    with pytest.raises(GermlineError, match=r"^task: the longest prompt is too long$"):
        evaluated(fleet_of(engines))
    assert [one.starts for one in engines] == [1, 1]


def test_after_an_error_the_fleet_can_be_used():
    """Cells that were at work when the error came are finished and left aside."""
    engines = crew(3, refusing)
    fleet = fleet_of(engines)
    with pytest.raises(GermlineError, match="too long"):
        evaluated(fleet)
    engines[0]._fault = None
    fleet.apply(UPDATES[0])
    alone = local()
    alone.apply(UPDATES[0])
    assert_same(evaluated(fleet, 1), evaluated(alone, 1))
    assert fleet.digest() == alone.digest()


def test_an_engine_that_cannot_be_loaded_is_an_error_at_once():
    def load():
        raise GermlineError("model: 'nowhere' has no config.json")

    engines = [Nearby("engine 0"), Nearby("engine 1", load=load)]
    with pytest.raises(GermlineError, match=r"^model: 'nowhere' has no config\.json$"):
        fleet_of(engines)
    assert all(one.engine is None for one in engines)


# --- snapshots


def test_a_snapshot_is_the_one_an_engine_here_would_write(tmp_path):
    fleet, alone = fleet_of(crew(2)), local()
    for update in UPDATES[:3]:
        fleet.apply(update)
        alone.apply(update)
    fleet.save_snapshot(tmp_path / "elsewhere", 2, keep=1)
    alone.save_snapshot(tmp_path / "here", 2, keep=1)
    one, other = (snapshots(tmp_path / name)[-1] for name in ("elsewhere", "here"))
    assert one.read_bytes() == other.read_bytes()


def test_a_restored_fleet_goes_on_as_if_it_had_never_stopped(tmp_path):
    first = fleet_of(crew(2))
    base = first.digest()
    for update in UPDATES[:4]:
        first.apply(update)
        first.digest()
    for later in (fleet_of(crew(3)), local()):
        later.restore(first._entries, tmp_path, base)
        assert later.digest() == first.digest()
        assert_same(evaluated(later, 4), evaluated(first, 4))


def test_a_restored_fleet_rebuilds_what_is_lost_later(tmp_path, undisturbed):
    first = fleet_of(crew(1))
    base = first.digest()
    for update in UPDATES[:4]:
        first.apply(update)
    assert first.digest()
    later = fleet_of(crew(2, killed_at(0, 1, kind=Play)))
    later.restore(first._entries, None, base)
    expected = evaluated(first, 4)
    for _ in range(4):
        assert_same(evaluated(later, 4), expected)


def test_another_base_model_is_refused(tmp_path):
    with pytest.raises(GermlineError, match="the base model is not the one this run began with"):
        fleet_of(crew(2)).restore([], tmp_path, "0" * 64)


def test_nothing_is_missing_and_nobody_waits_for_a_wide_cell():
    """One cell for everything: one engine plays it, the others have nothing to do."""
    fleet = fleet_of(crew(3))
    fleet.cell = Cell(members=6, examples=7)
    evaluation = evaluated(fleet)
    assert not any(math.isnan(reward) for reward in evaluation.rewards.ravel())
    assert torch.tensor(evaluation.rewards).shape == (6, 7)


def test_digests_are_compared_after_every_evaluation_and_every_update():
    engines = crew(2)
    digests(fleet_of(engines), count=3)
    for one in engines:
        asked = [type(job) for job in one.jobs if isinstance(job, Apply | Digest)]
        assert asked == [Digest, Apply, Digest] * 3
