"""Searches by coordinates with engines elsewhere: members travel by name, updates as told."""

import pickle

import numpy as np
import pytest

import germline
from germline.fleet.mirrored_search import MemberRef, MirroredEngine, as_member_ref, strip_offsets
from germline.fleet.remote_fleet import RemoteFleet
from germline.fleet.worker_jobs import ApplyJob, CatchUpJob, GenerateJob
from germline.fleet.worker_pool import WorkerPool
from germline.record import JournalEntry, RunDirectory
from germline.run.build_fleet import uses_mirrored_search
from germline.run.build_parts import build_run_parts, make_engine
from germline.strategies import make_strategy
from germline.training import generations
from germline.types import GermlineError, VectorPerturbation
from tests.remote_engines import (
    DECODING,
    EXAMPLES,
    TASK,
    Chance,
    Nearby,
    first_one_first,
    killed_at,
)
from tests.toy_runs import GradedHere, finish, journal, run, settings, stopped_after

SEARCH = ("space=full", "strategy={kind: sep_cma, population: 6, sigma: 0.3}", "generations=4")
CONFIG = settings(*SEARCH)
ENGINE = make_engine(CONFIG)


def strategy():
    dimension = ENGINE.weights.dimension
    return make_strategy(CONFIG.strategy, run_seed=0, generations=4, dimension=dimension)


def follower():
    return MirroredEngine(make_engine(CONFIG), strategy)


def moves(count=3):
    """Return what a search told in its first generations, with where it went."""
    search, chance = strategy(), np.random.default_rng(0)
    return [search.tell(search.ask(n), chance.normal(size=6)) for n in range(count)]


def reached(updates):
    """Return entries whose digests are those of an engine that is given every offset."""
    engine, entries = make_engine(CONFIG), []
    for update in updates:
        engine.apply(update)
        entries.append(JournalEntry(update, engine.weights.digest(), germline.noise.NOISE_VERSION))
    return entries


@pytest.mark.slow
@pytest.mark.parametrize("send_offsets", ["false", "true"])
def test_two_engines_find_the_journal_of_one(tmp_path, send_offsets):
    fleet = f"fleet={{engines: 2, send_offsets: {send_offsets}}}"
    two = run(tmp_path / "two", *SEARCH, fleet)
    assert journal(two) == journal(run(tmp_path / "one", *SEARCH))


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_engines_that_are_told_all_of_it(tmp_path):
    first = stopped_after(germline.train(settings(*SEARCH), tmp_path / "run"), 3)
    finish(germline.resume(first, ["fleet.engines=2"]))
    assert journal(first) == journal(run(tmp_path / "one", *SEARCH))


def test_an_engine_that_was_lost_is_told_all_of_it_when_it_is_back(tmp_path):
    remotes = [
        Nearby("engine 0", killed_at(1, kind=ApplyJob), follower),
        Nearby("engine 1", killed_at(2, 7, kind=GenerateJob), follower),
    ]
    fleet = RemoteFleet(
        WorkerPool(remotes, Chance()), GradedHere(TASK), CONFIG.microbatch, mirrored=True
    )
    with build_run_parts(CONFIG) as parts:
        loop = (parts.strategy, parts.shape, fleet, parts.batch, parts.decoding, range(4))
        found = [record.digest for record in generations(*loop)]
    alone = finish(germline.train(CONFIG, tmp_path / "alone"))
    assert found == [entry.digest for entry in RunDirectory.open(alone).journal.read()]
    assert [one.starts for one in remotes] == [2, 3]


def test_what_travels_does_not_grow_with_the_numbers_searched():
    population = strategy().ask(0)
    named = GenerateJob([as_member_ref(one) for one in population.members], [], DECODING)
    assert len(pickle.dumps(named)) < 150 * len(population)
    assert (
        len(pickle.dumps(GenerateJob(population.members, [], DECODING)))
        > 4 * ENGINE.weights.dimension
    )
    assert len(pickle.dumps(ApplyJob(strip_offsets(moves(1)[0])))) < 400


def test_a_fleet_of_followers_is_sent_no_offsets():
    remote = Nearby("engine 0", load=follower)
    fleet = RemoteFleet(
        WorkerPool([remote], first_one_first), GradedHere(TASK), CONFIG.microbatch, mirrored=True
    )
    population = strategy().ask(0)
    fleet.evaluate(population, EXAMPLES, DECODING)
    fleet.apply(moves(1)[0])
    assert fleet.digest() == reached(moves(1))[0].digest
    played = [job for job in remote.jobs if isinstance(job, GenerateJob)]
    assert {type(one) for job in played for one in job.members} == {MemberRef}
    assert [job for job in remote.jobs if isinstance(job, ApplyJob)] == [
        ApplyJob(strip_offsets(moves(1)[0]))
    ]
    assert "offsets=None" in repr(strip_offsets(moves(1)[0]))


def test_a_follower_plays_what_an_engine_plays_that_is_given_the_numbers():
    members = strategy().ask(0).members
    named = GenerateJob([as_member_ref(one) for one in members], EXAMPLES, DECODING)(follower())
    assert named == GenerateJob(members, EXAMPLES, DECODING)(make_engine(CONFIG))


def test_an_engine_that_comes_late_is_told_what_it_missed():
    entries = reached(moves())
    late = follower()
    ApplyJob(strip_offsets(entries[0].update))(late)
    told = [
        JournalEntry(strip_offsets(one.update), one.digest, one.noise_version)
        for one in entries[1:]
    ]
    assert CatchUpJob(told, entries[-1].digest)(late) == entries[-1].digest


def test_members_that_are_drawn_otherwise_elsewhere_stop_the_run():
    member = strategy().ask(0).members[2]
    moved = VectorPerturbation(0, 2, np.nextafter(member.offsets, np.float32(9)))
    with pytest.raises(
        GermlineError, match=r"member 2 of generation 0 differently .* fleet\.send_offsets=true"
    ):
        GenerateJob([as_member_ref(moved)], EXAMPLES, DECODING)(follower())


def test_one_engine_here_is_sent_nothing():
    with pytest.raises(GermlineError, match=r"fleet\.send_offsets=true would be ignored"):
        settings(*SEARCH, "fleet.send_offsets=true")


@pytest.mark.parametrize("kind", ["nes", "cma"])
def test_other_members_travel_in_one_way_alone(kind):
    with pytest.raises(
        GermlineError, match=rf"fleet\.send_offsets=true would be ignored .*kind={kind}"
    ):
        settings(
            "fleet={engines: 2, send_offsets: true}", "space=full", f"strategy={{kind: {kind}}}"
        )


def test_the_few_numbers_of_cma_are_sent():
    assert uses_mirrored_search(CONFIG)
    assert not uses_mirrored_search(
        settings("space=full", "strategy={kind: cma, population: 6, sigma: 0.3}")
    )
