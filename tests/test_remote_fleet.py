"""Engines elsewhere: any number of them, answering in any order, gives the same run."""

import pytest

from germline.checkpoint import list_snapshots
from germline.config import Full, MicrobatchSettings
from germline.fleet import Fleet, LocalFleet
from germline.fleet.worker_jobs import (
    ApplyJob,
    DigestJob,
    GenerateJob,
    JobRaised,
    LogProbabilitiesQuery,
    Outcome,
    RestoreJob,
    dimension,
    sigma_scales,
)
from germline.fleet.worker_pool import WorkerPool
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
    digests,
    evaluated,
    first_one_first,
    fleet_of,
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


# --- read-only questions


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


# --- errors


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


# --- snapshots


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


def test_digests_are_compared_after_every_evaluation_and_every_update():
    engines = pool(2)
    digests(fleet_of(engines), count=3)
    for one in engines:
        asked = [type(job) for job in one.jobs if isinstance(job, ApplyJob | DigestJob)]
        assert asked == [DigestJob, ApplyJob, DigestJob] * 3
