"""The start of a run: what is refused or stopped there leaves a folder that can be used again."""

import json

import pytest

from germline.record import RunDirectory, run_paths
from germline.run import resume, train
from germline.types import GermlineError
from tests.toy_runs import finish, journal, run, settings

pytestmark = pytest.mark.usefixtures("graded_in_process")

AUTO = ("strategy={kind: nes, population: 6}", "generations=2")


def refused_at_its_start(folder):
    """Begin a run whose loop fails before the first generation, as with an unreachable judge."""
    training = train(settings(), folder)
    training._score = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        finish(training)
    return folder


def test_the_folder_of_a_run_without_a_generation_is_taken_by_the_next_run(tmp_path, caplog):
    folder = refused_at_its_start(tmp_path / "run")
    assert (folder / "run.json").exists()
    finish(train(settings("generations=1"), folder))
    assert f"out: {folder} holds a run without any generation" in caplog.text
    assert json.loads((folder / "run.json").read_bytes())["config"]["generations"] == 1
    assert RunDirectory.open(folder).has_ended
    assert journal(folder) == journal(run(tmp_path / "fresh", "generations=1"))


def test_the_folder_of_a_run_without_a_generation_can_be_resumed(tmp_path):
    folder = refused_at_its_start(tmp_path / "run")
    finish(resume(folder))
    assert journal(folder) == journal(run(tmp_path / "fresh"))


@pytest.mark.parametrize("name", ["notes.txt", "journal.jsonl"])
def test_a_folder_with_a_file_of_value_is_not_cleared(tmp_path, name):
    folder = refused_at_its_start(tmp_path / "run")
    (folder / name).write_text("{")
    with pytest.raises(GermlineError, match=r"exists and is not empty; continue that run with"):
        train(settings(), folder)
    assert (folder / "run.json").exists()


def test_a_folder_in_which_a_run_is_calibrating_is_not_cleared(tmp_path):
    folder = refused_at_its_start(tmp_path / "run")
    owner = RunDirectory.open(folder)
    release = run_paths.acquire_lock(folder, owner)
    with pytest.raises(GermlineError, match=r"exists and is not empty"):
        train(settings(), folder)
    release()
    train(settings("generations=1"), folder)


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
