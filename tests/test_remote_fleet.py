"""Engines elsewhere: any number of them, answering in any order, gives the same run."""

import pytest

from germline.checkpoint import list_snapshots
from germline.config import Full, MicrobatchSettings
from germline.fleet import Fleet, LocalFleet
from germline.fleet.worker_jobs import (
    ApplyJob,
    GenerateJob,
    JobRaised,
    LogProbabilitiesQuery,
    Outcome,
    PackedSnapshot,
    RemoteEngineLost,
    RestoreJob,
    dimension,
    sigma_scales,
)
from germline.fleet.worker_pool import MAX_LOSSES, WorkerPool
from germline.record import JournalEntry
from germline.run.build_parts import make_engine
from germline.types import Decoding, EngineLost, GermlineError, Update
from tests.remote_engines import (
    CONFIG,
    DECODING,
    EXAMPLES,
    STRATEGY,
    TASK,
    UPDATES,
    Nearby,
    assert_same,
    corrupt,
    corrupted_at,
    digests,
    evaluated,
    first_one_first,
    fleet_of,
    killed_at,
    last_one_first,
    local,
    pool,
)
from tests.tiny_engines import examples as texts
from tests.tiny_engines import inprocess
from tests.toy_runs import GradedHere
from tests.wrappers import EngineWrapper

PROMPTS = texts()


@pytest.fixture(scope="module")
def undisturbed():
    return digests(local())


@pytest.mark.parametrize("engines", [1, 2, 5])
def test_any_number_of_engines_gives_the_evaluations_and_the_run_of_one_here(engines, undisturbed):
    fleet = fleet_of(pool(engines), seed=engines)
    assert isinstance(fleet, Fleet)
    assert_same(evaluated(fleet), evaluated(local()))
    assert_same(
        fleet.evaluate_center(EXAMPLES, DECODING), local().evaluate_center(EXAMPLES, DECODING)
    )
    assert digests(fleet) == undisturbed


class Watched(EngineWrapper):
    """A toy engine that remembers the shape of every cell it was given."""

    def __init__(self):
        super().__init__(make_engine(CONFIG))
        self.shapes = []

    def generate(self, members, examples, decoding):
        self.shapes.append((len(members), len(examples)))
        return self.inner.generate(members, examples, decoding)


def test_members_and_the_center_are_evaluated_in_cells_of_the_size_in_the_config():
    engine = Watched()
    fleet = LocalFleet(engine, GradedHere(TASK), MicrobatchSettings(members=4, examples=3))
    assert isinstance(fleet, Fleet)
    before = fleet.digest()
    evaluation = fleet.evaluate(STRATEGY.ask(0), EXAMPLES, DECODING)
    assert (evaluation.rewards.shape, len(evaluation.rollouts)) == ((6, 7), 42)
    assert engine.shapes == [(4, 3), (4, 3), (4, 1), (2, 3), (2, 3), (2, 1)]
    engine.shapes.clear()
    evaluation = fleet.evaluate_center(TASK.examples("train")[:20], DECODING)
    assert evaluation.rewards.shape == (1, 20)
    assert engine.shapes == [(1, 12), (1, 8)]
    assert fleet.digest() == before


def test_an_engine_has_its_next_job_before_its_last_result_is_used():
    workers = WorkerPool(pool(1), first_one_first)
    workers.wait_ready()
    jobs = dict.fromkeys("abc", dimension)
    busy = [(key, slot.job is not None) for key, slot, _ in workers.dispatch(jobs)]
    assert busy == [("a", True), ("b", True), ("c", False)]


def test_every_engine_applies_every_update_itself(tmp_path):
    engines = pool(3)
    fleet, alone = fleet_of(engines), local()
    for update in UPDATES[:3]:  # the digest may be asked for later
        fleet.apply(update)
        alone.apply(update)
    assert_same(evaluated(fleet, 3), evaluated(alone, 3))
    assert {one.digest() for one in engines} == {alone.digest(), fleet.digest()}
    fleet.save_snapshot(tmp_path / "elsewhere", 2)
    alone.save_snapshot(tmp_path / "here", 2)
    one, other = (list_snapshots(tmp_path / name)[-1] for name in ("elsewhere", "here"))
    assert one.read_bytes() == other.read_bytes()


def searched_names(engine):
    """A question of another package: the names of the searched tensors."""
    return sorted(engine.weights.scales())


def written():
    (row,) = make_engine(CONFIG).generate([None], EXAMPLES, DECODING)
    members = [None, *STRATEGY.ask(0).members[:2]]
    return LogProbabilitiesQuery(members, EXAMPLES, [row] * len(members))


QUERIES = [dimension, sigma_scales, searched_names, written()]


@pytest.mark.parametrize("query", QUERIES)
def test_every_fleet_answers_a_question_with_the_newest_update(query):
    alone, fleet = local(), fleet_of(pool(2))
    before = alone.query(query)
    assert fleet.query(query) == before == query(make_engine(CONFIG))
    for one in (alone, fleet):
        one.apply(UPDATES[0])
    assert fleet.query(query) == alone.query(query)
    assert (alone.query(query) != before) == isinstance(query, LogProbabilitiesQuery)


def test_large_cells_are_played_first_each_by_whoever_is_free():
    engines = pool(2)
    # The first engine answers only when it is the last one at work.
    evaluated(fleet_of(engines, wait=last_one_first))
    played = [[job for job in one.jobs if isinstance(job, GenerateJob)] for one in engines]
    assert [*map(len, played)] == [1, 8]  # 6 members x 7 examples in cells of 2 x 3
    jobs = [*played[0], *played[1]]
    assert [len(job.examples) for job in jobs] == [3] * 6 + [1] * 3
    # Without what only graders need.
    assert {(one.answer, tuple(one.facts)) for job in jobs for one in job.examples} == {("", ())}


def refusing(_engine, job) -> Outcome | None:
    error = GermlineError("task: the longest prompt is too long")
    return JobRaised(error) if isinstance(job, GenerateJob) else None


def test_an_error_of_a_job_is_raised_here_and_the_fleet_can_be_used():
    """Cells that were at work when the error came are finished and left aside."""
    engines = pool(3, refusing)
    fleet = fleet_of(engines, wait=first_one_first)
    with pytest.raises(GermlineError, match=r"^task: the longest prompt is too long$"):
        evaluated(fleet)
    engines[0]._fault = None
    fleet.apply(UPDATES[0])
    alone = local()
    alone.apply(UPDATES[0])
    assert_same(evaluated(fleet, 1), evaluated(alone, 1))
    assert fleet.digest() == alone.digest()
    assert [one.starts for one in engines] == [1, 1, 1]


@pytest.mark.parametrize("error", [GermlineError, EngineLost])
def test_an_engine_that_cannot_be_loaded_is_an_error_at_once(error):
    def load():
        raise error("model: 'nowhere' has no config.json")

    engines = [Nearby("engine 0"), Nearby("engine 1", load=load)]
    with pytest.raises(GermlineError, match=r"^model: 'nowhere' has no config\.json$"):
        fleet_of(engines)
    assert all(one.engine is None for one in engines)


def test_a_restored_fleet_goes_on_as_if_it_had_never_stopped(tmp_path):
    first = fleet_of(pool(2))
    base = first.digest()
    for update in UPDATES[:4]:
        first.apply(update)
        first.digest()
    for later in (fleet_of(pool(3)), local()):
        later.restore(first._entries, tmp_path, base)
        assert later.digest() == first.digest()
        assert_same(evaluated(later, 4), evaluated(first, 4))


def test_an_engine_serves_what_it_was_restored_to():
    """The center is served from a copy in a dense space: masters alone are not enough."""
    engines = [inprocess("qwen2", Full()) for _ in range(2)]
    entries = []
    for generation in range(2):
        update = Update(3, generation, 0.05, 5.0, (1.0, -0.5))
        engines[0].apply(update)
        entries.append(JournalEntry(update, engines[0].weights.digest()))
    before = engines[1].generate([None], PROMPTS, Decoding(8))
    assert before != engines[0].generate([None], PROMPTS, Decoding(8))
    RestoreJob(entries, None, engines[1].weights.digest())(engines[1])
    assert engines[1].generate([None], PROMPTS, Decoding(8)) == engines[0].generate(
        [None], PROMPTS, Decoding(8)
    )


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
