"""The start of a run: what is refused or stopped there leaves a folder that can be used again."""

import pytest

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
