"""Runs from start to end: training, stopping, resuming, replaying, on the toy engine."""

import math
from dataclasses import replace

import pytest

from germline.checkpoint import list_snapshots
from germline.config import Conciseness, load_config
from germline.config.loader import read_recorded
from germline.evaluation import score_center
from germline.record import RunDirectory
from germline.run import build_run_parts, replay, resume, train
from germline.run.lifecycle import resumed_config
from germline.types import GermlineError, Update
from tests import synthetic_runs
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


# --- the start of a run: what is refused or stopped there leaves a folder that can be used again


AUTO = ("strategy={kind: nes, population: 6}", "generations=2")


def refused_at_its_start(folder):
    """Begin a run whose loop fails before the first generation, as with an unreachable judge."""
    training = train(settings(), folder)
    training._score = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        finish(training)
    return folder


def test_the_folder_of_a_run_without_a_generation_is_not_taken_by_the_next_run(tmp_path):
    folder = refused_at_its_start(tmp_path / "run")
    with pytest.raises(GermlineError, match=r"exists and is not empty; continue that run with"):
        train(settings("generations=1"), folder)


def test_the_folder_of_a_run_without_a_generation_can_be_resumed(tmp_path):
    folder = refused_at_its_start(tmp_path / "run")
    finish(resume(folder))
    assert journal(folder) == journal(run(tmp_path / "fresh"))


def test_a_stop_in_the_calibration_ends_there_and_the_run_resumes(tmp_path):
    training = train(settings(*AUTO), tmp_path / "run")
    trials = []

    def stop(trial):
        trials.append(trial)
        training.stop()

    training.on_trial = stop
    assert list(training) == []
    assert len(trials) == 1
    assert training.directory.journal.last_generation() == -1
    finish(resume(tmp_path / "run"))
    assert journal(tmp_path / "run") == journal(run(tmp_path / "fresh", *AUTO))


def test_a_training_that_is_stopped_before_it_begins_runs_no_generation(tmp_path):
    training = train(settings(), tmp_path / "run")
    training.stop()
    assert list(training) == []
    assert training.start is not None
    finish(resume(tmp_path / "run"))
    assert journal(tmp_path / "run") == journal(run(tmp_path / "fresh"))


# --- what a resumed run may change, and which old runs open


def test_a_file_of_settings_resumes_like_the_settings_in_it(tmp_path):
    recorded = settings("fleet={engines: 2, quorum: 0.9}")
    file = tmp_path / "one.yaml"
    file.write_text("fleet: {engines: 1}\n")
    one = resumed_config(recorded, [str(file)])
    assert one == resumed_config(recorded, ["fleet.engines=1"])
    assert resumed_config(one, ["fleet.engines=2"]) == recorded


def test_another_fleet_keeps_what_it_shares_with_the_recorded_one():
    recorded = settings("fleet={engines: 2, quorum: 0.9}", "engine=inprocess")
    fleet = resumed_config(recorded, ["fleet.kind=ray"]).fleet
    assert (fleet.kind, fleet.engines, fleet.quorum) == ("ray", 2, 0.9)


def test_the_memory_of_an_engine_may_change():
    recorded = settings("engine.kind=vllm", "engine.options={gpu_memory_utilization: 0.9}")
    less = "engine.options.gpu_memory_utilization=0.5"
    resumed = resumed_config(recorded, [less])
    assert resumed.model_dump()["engine"]["options"] == {"gpu_memory_utilization": 0.5}


CMA = ("space=full", "strategy={kind: cma, population: 4, sigma: 0.1}")


@pytest.mark.parametrize(
    ("begun", "override", "setting"),
    [
        ((), "engine=inprocess", "engine.kind"),
        ((), "engine.kind=vllm", "engine.kind"),
        ((), "strategy.sigma=0.4", "strategy.sigma"),
        ((), "strategy.sigma={start: 0.3, end: 0.1}", "strategy.sigma"),
        ((), "batch_size=5", "batch_size"),
        ((), "task.temperature=0.5", "task.temperature"),
        ((), "space.rank=2", "space.rank"),
        ((), "shaping=centered_ranks", "shaping.kind"),
        ((), "microbatch.members=3", "microbatch.members"),
        ((), "seed=1", "seed"),
        # Where a section is of another kind, its other settings follow from that.
        (CMA, "strategy.kind=sep_cma", "strategy.kind"),
        (("strategy.sigma={kind: success, start: 0.1}",), "strategy.sigma=0.1", "strategy.sigma"),
    ],
)
def test_what_makes_another_run_is_refused_by_name(begun, override, setting):
    recorded = settings("strategy={kind: nes, antithetic: false}", *begun)
    with pytest.raises(GermlineError, match=rf"resume: {setting}\S* cannot change within a run"):
        resumed_config(recorded, [override])


def test_a_setting_that_the_resumed_run_would_ignore_is_refused():
    with pytest.raises(GermlineError, match=r"fleet\.quorum"):
        resumed_config(settings(), ["fleet.quorum=0.9"])


def test_a_run_opens_and_resumes_after_a_default_has_changed(tmp_path, monkeypatch):
    path = tmp_path / "run"
    RunDirectory.create(path, settings(), synthetic_runs.DIGEST, threads=1).release_lock()
    monkeypatch.setattr(Conciseness.model_fields["kl_per"], "default", "completion")
    recorded = RunDirectory.open(path).config
    assert recorded.task.kl_per == "token"
    assert resumed_config(recorded, ["generations=9"]).task.kl_per == "token"
    assert load_config(path).task.kl_per == "token"


# --- snapshots; the journal does without them


def test_snapshots_come_when_they_are_due_and_at_the_end(tmp_path):
    path = run(tmp_path / "run", "generations=5", "record.keep_snapshots=9")
    names = [one.stem for one in list_snapshots(path / "snapshots")]
    assert names == ["generation-000001", "generation-000003", "generation-000004"]


@pytest.mark.parametrize(
    ("overrides", "kept"),
    [
        ((), 2),
        (("record.keep_snapshots=5",), 4),
        (("record.keep_snapshots=0",), 0),
    ],
)
def test_as_many_snapshots_are_kept_as_asked(tmp_path, overrides, kept):
    path = run(tmp_path / "run", "generations=4", "record.snapshot_every=1", *overrides)
    assert len(list_snapshots(path / "snapshots")) == kept


def test_a_run_without_snapshots_resumes_to_the_same_digest(tmp_path):
    plain = train(settings("generations=6"), tmp_path / "plain")
    digests = [one.digest for one in plain]
    run = train(settings("generations=6", "record.keep_snapshots=0"), tmp_path / "run")
    for one in run:
        if one.generation == 2:
            run.stop()
    assert list_snapshots(run.directory.snapshots) == []
    assert [one.digest for one in resume(tmp_path / "run")] == digests[3:]


def test_an_early_stop_writes_its_snapshot_before_the_caller_may_leave_the_loop(tmp_path):
    early = (
        "generations=40",
        "held_out.every=1",
        "held_out.patience=1",
        "record.snapshot_every=99",
    )
    run = train(settings(*early), tmp_path / "run")
    last = next(one for one in run if run.directory.stopped_by)
    (snapshot,) = list_snapshots(run.directory.snapshots)
    assert last.generation < 39
    assert snapshot.stem.endswith(str(last.generation))


def test_a_run_with_settings_that_are_gone_opens_where_they_changed_nothing():
    recorded = load_config({"task": "wordle"}).model_dump(mode="json")
    recorded["task"] |= {"words": None, "sample_weight": None}
    recorded["graders"]["workers"] = 1000
    opened = read_recorded(recorded)
    assert (opened.task.kind, opened.graders.workers) == ("wordle", 192)
    with pytest.raises(GermlineError, match=r"task\.words: unknown setting"):
        read_recorded({**recorded, "task": {**recorded["task"], "words": "mine.txt"}})
    kept = read_recorded({**recorded, "retained": {"words": {"task": recorded["task"]}}})
    assert kept.retained["words"].model_dump()["task"]["kind"] == "wordle"


def test_held_out_answers_that_cannot_be_graded_are_told(tmp_path, caplog):
    reward = (
        "def reward(completion, row):\n    if row['held']:\n        raise RuntimeError('away')\n"
    )
    rows = "train, test = [{'prompt': 'a', 'held': 0}] * 4, [{'prompt': 'b', 'held': 1}] * 4\n"
    (tmp_path / "task.py").write_text(rows + reward + "    return float(len(completion))\n")
    run(tmp_path / "run", f"task={tmp_path / 'task.py'}", "generations=1", "batch_size=4")
    assert "the grading of 4 of 4 held-out completions failed, most often by: " in caplog.text
