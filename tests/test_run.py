"""Runs from start to end: training, stopping, resuming, replaying, on the toy engine."""

import math
from dataclasses import replace

import pytest

from germline.checkpoint import list_snapshots
from germline.evaluation import score_center
from germline.record import RunDirectory
from germline.run import build_run_parts, replay, resume, train
from germline.types import GermlineError, Update
from tests.toy_runs import finish, journal, rows, run, settings, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return run(tmp_path_factory.mktemp("plain") / "run")


# --- training


def test_training_yields_each_generation_once_it_is_on_disk(tmp_path):
    training = train(settings(), tmp_path / "run")
    assert (training.start, training.end) == (None, None)
    for count, record in enumerate(training):
        entries = training.directory.journal.read()
        assert len(entries) == count + 1
        assert entries[-1].digest == record.digest
        assert entries[-1].update == record.update
    assert count == 3
    scores = [one for one in (training.start, training.end) if one]
    assert [one.generation for one in scores] == [0, 4]


def test_mistake_17_held_out_scores_at_the_start_when_due_and_at_the_end(tmp_path):
    path = run(tmp_path / "run", "generations=7", "held_out.every=3")
    directory = RunDirectory.open(path)
    assert [one.score.generation for one in directory.held_out()] == [0, 3, 6, 7]
    assert [row["generation"] for row in directory.generations() if "held_out" in row] == [2, 5]
    assert {one.score.n for one in directory.held_out()} == {5}


def test_held_out_examples_are_none_of_those_trained_on(plain):
    directory = RunDirectory.open(plain)
    trained = {row["prompt"] for row in directory.rollouts()}
    scored = {sample.prompt for one in directory.held_out() for sample in one.samples}
    assert scored
    assert not trained & scored


def test_the_same_config_and_seed_give_the_same_bytes(plain, tmp_path):
    again = run(tmp_path / "run")
    assert journal(again) == journal(plain)
    assert rows(again) == rows(plain)


def test_mistake_6_seed_0_42_and_1_are_three_runs(plain, tmp_path):
    journals = [journal(run(tmp_path / seed, f"seed={seed}")) for seed in ("42", "1")]
    assert len({journal(plain), *journals}) == 3
    first = RunDirectory.open(plain).journal.read()[0].update
    assert isinstance(first, Update)
    assert first.run_seed == 0


def test_without_a_name_a_run_gets_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = settings("generations=1")
    first, second = train(config), train(config)
    assert first.directory.path != second.directory.path
    for training in (first, second):
        assert training.directory.path.parent.name == "runs"
        assert training.directory.path.name.startswith("conciseness-low_rank-20")
        finish(training)


def test_snapshots_come_when_they_are_due_and_at_the_end(tmp_path):
    path = run(tmp_path / "run", "generations=5", "record.keep_snapshots=9")
    names = [one.stem for one in list_snapshots(path / "snapshots")]
    assert names == ["generation-000001", "generation-000003", "generation-000004"]


def test_a_training_is_iterated_once(tmp_path):
    training = train(settings(), tmp_path / "run")
    finish(training)
    with pytest.raises(GermlineError, match=r"iterated before; continue it with germline\.resume"):
        finish(training)


# --- stopping and resuming


def test_a_held_out_score_due_when_the_run_is_stopped_is_not_lost(tmp_path, monkeypatch):
    training = train(settings("held_out.every=1"), tmp_path / "run")
    for record in training:
        if record.generation == 0:
            training.stop()  # takes effect at once: the generation is over
    training = resume(tmp_path / "run")
    with monkeypatch.context() as patch:

        def stop_and_score(*given):
            training.stop()  # in the middle of generation 1
            return score_center(*given)

        patch.setattr("germline.run.training.score_center", stop_and_score)
        finish(training)
    finish(resume(tmp_path / "run"))
    scores = RunDirectory.open(tmp_path / "run").held_out()
    assert [one.score.generation for one in scores] == [0, 1, 2, 3, 4]


def test_leaving_the_loop_by_break_leaves_a_run_that_resumes(plain, tmp_path):
    for record in train(settings(), tmp_path / "run"):
        if record.generation == 1:
            break
    finish(resume(tmp_path / "run"))
    assert journal(tmp_path / "run") == journal(plain)


def test_resuming_a_finished_run_changes_nothing(plain):
    before = (journal(plain), rows(plain))
    assert list(resume(plain)) == []
    assert (journal(plain), rows(plain)) == before


def test_what_does_not_touch_the_bits_may_change(plain, tmp_path):
    path = stopped_after(train(settings(), tmp_path / "run"), 1)
    overrides = ["held_out.every=1", "record.snapshot_every=1", "graders.workers=2"]
    finish(resume(path, overrides))
    assert journal(path) == journal(plain)
    assert RunDirectory.open(path).config.held_out.every == 1


def test_fewer_generations_than_were_run_are_refused(plain):
    with pytest.raises(GermlineError, match="generations=2, but the run already has 4"):
        resume(plain, ["generations=2"])


# --- damage


# --- replay


def test_replay_rebuilds_any_generation_from_the_base_on_and_writes_nothing(plain):
    before = sorted(plain.rglob("*"))
    directory = RunDirectory.open(plain)
    digests = [directory.base_digest, *(entry.digest for entry in directory.journal.read())]
    assert [replay(plain, generation) for generation in (-1, 1, 3)] == [
        digests[at] for at in (0, 2, 4)
    ]
    assert replay(plain) == digests[-1] != digests[-2]
    assert sorted(plain.rglob("*")) == before


def test_the_parts_of_a_run_driven_by_hand_give_what_train_gives(plain):
    with build_run_parts(settings()) as parts:
        digests = []
        for generation in range(4):
            population = parts.method.ask(generation)
            sampling_noise = replace(parts.decoding, noise_generation=generation)
            evaluation = parts.fleet.evaluate(population, parts.batch(generation), sampling_noise)
            assert not math.isnan(evaluation.rewards.sum())
            shaped = parts.method.shape(evaluation, antithetic=True)
            parts.fleet.apply(parts.method.strategy.tell(population, shaped))
            digests.append(parts.fleet.digest())
    assert digests == [entry.digest for entry in RunDirectory.open(plain).journal.read()]
