"""A generation may close with a quorum: who is missing has no utility, and is written down."""

from dataclasses import replace

import numpy as np
import pytest

import germline
from germline.config import MicrobatchSettings
from germline.fleet import LocalFleet
from germline.fleet.remote_fleet import GRACE, Quorum, RemoteFleet
from germline.fleet.worker_jobs import CatchUpJob, RestoreJob
from germline.fleet.worker_pool import WorkerPool, WorkerState
from germline.rollout import cut_microbatches
from germline.run import build_run_parts
from tests.remote_engines import (
    CONFIG,
    DECODING,
    EXAMPLES,
    STRATEGY,
    TASK,
    UPDATES,
    assert_same,
    evaluated,
    local,
    pool,
)
from tests.test_engine_timeouts import Clockwork
from tests.toy_runs import GradedHere, finish, journal, run, settings, stopped_after

POPULATION = STRATEGY.ask(0)
VOTERS = replace(POPULATION, needs_every_member=True)


@pytest.fixture
def clockwork():
    return Clockwork()


def lagging(clockwork, quorum, count=2):
    """A fleet whose first engine never answers while it is `stuck`, and the other one does."""
    engines = pool(count)
    together = WorkerPool(engines, clockwork.wait, clock=clockwork.clock)
    return engines, RemoteFleet(together, GradedHere(TASK), CONFIG.microbatch, quorum)


def missing(evaluation):
    return np.flatnonzero(np.isnan(evaluation.rewards).all(axis=1)).tolist()


def test_a_generation_closes_without_who_hangs_behind(clockwork):
    engines, fleet = lagging(clockwork, 0.6)
    clockwork.stuck.add(engines[0])
    evaluation = evaluated(fleet)
    # Cells hold 2 members: the pair at which the engine was is missing, with all its examples.
    assert len(missing(evaluation)) == 2
    assert missing(evaluation)[0] % 2 == 0
    whole = evaluated(local())
    rest = [member for member in range(6) if member not in missing(evaluation)]
    assert evaluation.rewards[rest].tobytes() == whole.rewards[rest].tobytes()
    assert evaluation.rollouts == tuple(one for one in whole.rollouts if one.member in rest)


@pytest.mark.parametrize(
    ("quorum", "evaluate"),
    [
        (1.0, evaluated),
        (0.6, lambda fleet: fleet.evaluate_center(EXAMPLES, DECODING)),
        (0.6, lambda fleet: fleet.evaluate(VOTERS, EXAMPLES, DECODING)),
    ],
    ids=["a quorum of all", "held-out scores", "every member"],
)
def test_everyone_is_waited_for(quorum, evaluate, clockwork):
    engines, fleet = lagging(clockwork, quorum)
    fleet.microbatch = MicrobatchSettings(members=2, examples=1)
    clockwork.stuck.add(engines[0])
    with pytest.raises(AssertionError, match="nobody would ever answer"):
        evaluate(fleet)


def test_who_was_late_applies_what_it_missed_and_plays_again(clockwork):
    engines, fleet = lagging(clockwork, 0.6)
    alone = local()
    clockwork.stuck.add(engines[0])
    evaluated(fleet)
    for update in UPDATES[:2]:
        for one in (fleet, alone):
            one.apply(update)
        assert fleet.digest() == alone.digest()
    clockwork.stuck.clear()
    while len(fleet.pool.ready_slots()) < 2:
        assert_same(evaluated(fleet, 2), evaluated(alone, 2))
    assert engines[0].starts == 1
    caught_up = [job for job in engines[0].jobs if isinstance(job, CatchUpJob | RestoreJob)]
    assert [len(job.entries) for job in caught_up] == [2]
    assert engines[0].digest() == alone.digest()


def test_who_was_late_and_is_lost_is_rebuilt(clockwork):
    engines, fleet = lagging(clockwork, 0.6)
    alone = local()
    clockwork.stuck.add(engines[0])
    evaluated(fleet)
    for one in (fleet, alone):
        one.apply(UPDATES[0])
    assert fleet.digest() == alone.digest()
    (late,) = fleet.pool.slots(WorkerState.LATE)
    fleet.pool.replace(late, "its node was removed")
    clockwork.stuck.clear()
    while len(fleet.pool.ready_slots()) < 2:
        evaluated(fleet, 1)
    assert engines[0].starts == 2
    assert any(isinstance(job, RestoreJob) for job in engines[0].jobs)
    assert engines[0].digest() == alone.digest()


def test_all_engines_late_are_waited_for(clockwork):
    """A quorum from one that is lost then: the others are late, and come back."""
    engines, fleet = lagging(clockwork, 0.6)
    alone = local()
    clockwork.stuck.add(engines[0])
    evaluated(fleet)
    (last,) = fleet.pool.ready_slots()
    fleet.pool.replace(last, "killed")
    clockwork.stuck.clear()
    assert_same(evaluated(fleet), evaluated(alone))


def quorum(share, clockwork, group=2):
    """Six members in cells of one, each with all its examples."""
    return Quorum(
        cut_microbatches(POPULATION.members, EXAMPLES, MicrobatchSettings(members=1)),
        6,
        share,
        group,
        clockwork.clock,
    )


def test_a_pair_is_complete_or_missing_and_the_others_have_half_as_long_again(clockwork):
    played = {(0, 0), (1, 0), (2, 0), (5, 0)}
    assert quorum(0.6, clockwork).missing(played) == {2, 3, 4, 5}
    assert quorum(0.6, clockwork, group=1).missing(played) == {3, 4}
    two_pairs = quorum(0.6, clockwork)
    clockwork.now = 10.0
    assert two_pairs.closing_time({(0, 0), (1, 0), (2, 0)}) is None
    in_time = {(0, 0), (1, 0), (2, 0), (3, 0)}
    assert two_pairs.closing_time(in_time) == 10.0 * (1 + GRACE)
    clockwork.now = 14.0
    assert not two_pairs.is_closed(in_time)
    clockwork.now = 15.0
    assert two_pairs.is_closed(in_time)
    # A member that has to be evaluated again no longer counts.
    assert not two_pairs.is_closed({(0, 0), (1, 0), (2, 0)})


@pytest.mark.parametrize(("share", "needed"), [(0.51, 4), (2 / 3, 4), (0.7, 5), (1.0, None)])
def test_a_share_of_members_is_rounded_up(share, needed, clockwork):
    one = quorum(share, clockwork, group=1)
    counts = [
        count
        for count in range(7)
        if one.closing_time({(member, 0) for member in range(count)}) is not None
    ]
    assert counts == ([] if needed is None else list(range(needed, 7)))


class Dropping(LocalFleet):
    """A fleet whose quorum drops two members wherever it may."""

    def evaluate(self, population, batch, decoding):
        found = super().evaluate(population, batch, decoding)
        if population.needs_every_member:
            return found
        found.rewards[:2] = np.nan
        return replace(found, rollouts=tuple(one for one in found.rollouts if one.member >= 2))


def test_late_engines_drop_members_of_a_generation_and_no_votes():
    votes = "method={kind: randopt, ensemble_size: 5}"
    config = settings("space=full", votes, "strategy.learning_rate=auto")
    with build_run_parts(config) as parts:
        whole, method = parts.fleet, parts.method
        assert isinstance(whole, LocalFleet)
        quorum = Dropping(whole.engine, whole.graders, whole.microbatch)
        population = method.ask(0)
        batch = parts.task.examples("train")[:4]
        method.learn(population, method.evaluate(quorum, population, batch, parts.decoding))
        assert {*method.voting_members()} == {*population.members[2:]}
        found = [method.evaluate_center(one, batch, parts.decoding) for one in (quorum, whole)]
    assert found[0].rollouts == found[1].rollouts


@pytest.mark.usefixtures("engines_in_process")
def test_one_engine_goes_on_with_a_run_that_had_a_quorum(tmp_path):
    begun = settings("fleet={engines: 2, quorum: 0.9}", "generations=2")
    stopped = stopped_after(germline.train(begun, tmp_path / "run"), 1)
    finish(germline.resume(stopped, ["fleet.engines=1"]))
    assert journal(stopped) == journal(run(tmp_path / "alone", "generations=2"))
