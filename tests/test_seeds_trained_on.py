"""Several run seeds of one folder are trained on together, and one that was trained on alone."""

import shutil
from pathlib import Path

import pytest

import germline
from germline.config import Config
from germline.record import RunDirectory
from germline.report.comparison import seed_groups
from germline.report.run_facts import RunFacts, next_commands
from germline.run.lifecycle import resumed_config
from germline.studies import run_seeds
from germline.studies.run_seeds import SeedStudy, train_seeds
from germline.types import GermlineError
from tests.test_run_seeds import CONFIG, command, finish, journal

pytestmark = pytest.mark.usefixtures("graded_in_process")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "three"
    finish(train_seeds(CONFIG, [0, 1, 2], folder))
    return folder


@pytest.fixture
def seeds(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "three")
    return tmp_path / "three"


def groups(folder: Path) -> list[list[int]]:
    runs = [RunFacts(run) for run in sorted(folder.glob("seed-*"))]
    return [[run.config.seed for run in group.runs] for group in seed_groups(runs)]


def test_more_generations_train_all_seeds_on_to_the_bits_of_longer_runs(
    seeds: Path, tmp_path: Path
) -> None:
    shown = command("resume", seeds, "generations=5", "-q")
    assert shown.exit_code == 0, shown.output
    finish(train_seeds({**CONFIG, "generations": 5}, [0, 1, 2], tmp_path / "long"))
    for seed in (0, 1, 2):
        run = f"seed-{seed}"
        assert journal(seeds / run) == journal(tmp_path / "long" / run)
    assert SeedStudy.open(seeds).config.generations == 5
    assert groups(seeds) == [[0, 1, 2]]


def test_an_interrupted_continuation_goes_on_from_the_folder(seeds: Path) -> None:
    trainings = SeedStudy.open(seeds, ["generations=5"]).trainings()
    list(next(trainings))
    finish(SeedStudy.open(seeds))
    assert [RunDirectory.open(seeds / f"seed-{n}").config.generations for n in range(3)] == [5] * 3


def test_a_seed_that_was_trained_on_alone_is_not_averaged_with_the_others(
    seeds: Path,
) -> None:
    list(germline.resume(seeds / "seed-0", ["generations=4"]))
    assert groups(seeds) == [[1, 2]]
    with pytest.raises(GermlineError, match=r"seed-0 has generations=4, and .*: ask for gener"):
        finish(SeedStudy.open(seeds))
    result = command("resume", seeds, "generations=4", "-q")
    assert result.exit_code == 0, result.output
    assert groups(seeds) == [[0, 1, 2]]


def test_seeds_that_stopped_early_train_on_together(tmp_path: Path) -> None:
    held_out = {"every": 1, "examples": 4, "patience": 1}
    strategy = {"population": 4, "sigma": 0.1, "learning_rate": 1e-12}
    config = {**CONFIG, "generations": 20, "held_out": held_out, "strategy": strategy}
    finish(train_seeds(config, [0, 1], tmp_path / "two"))
    [early, other] = [RunDirectory.open(tmp_path / "two" / f"seed-{seed}") for seed in (0, 1)]
    assert early.stopped_early
    way = f"germline resume {tmp_path / 'two'} held_out.patience=2"
    assert way in next_commands(early)
    more = command("resume", tmp_path / "two", "generations=30")
    assert more.exit_code == 2
    assert "stops early, so generations=30 would not train it on: set a larger" in more.stderr
    list(germline.resume(other.path, ["held_out.patience=2"]))
    assert groups(tmp_path / "two") == [[0, 1]]
    result = command(*way.split()[1:])
    assert result.exit_code == 0, result.output
    assert f"germline resume {tmp_path / 'two'} held_out.patience=4" in result.output
    assert [len(RunDirectory.open(run.path).journal.read()) for run in (early, other)] == [2, 2]
    again = command("resume", tmp_path / "two", "-q")
    assert again.exit_code == 0, again.output


def test_another_kind_of_fleet_trains_the_seeds_on(
    seeds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Config] = []

    def planned(path: Path, overrides: list[str]) -> None:  # instead of starting Ray
        made.append(resumed_config(RunDirectory.open(path).config, overrides))

    monkeypatch.setattr(run_seeds, "resume", planned)
    study = SeedStudy.open(seeds, ["generations=4", "fleet.kind=ray"])
    wanted = study.config.model_copy(update={"seed": 1})
    run_seeds._begin_or_resume(wanted, seeds / "seed-1")
    assert made == [wanted]


def test_settings_of_the_scores_cannot_change(seeds: Path) -> None:
    shown = command("resume", seeds, "held_out.examples=3")
    assert shown.exit_code == 2
    assert "seed-0 was run with another held_out.examples (4, not 3)" in shown.stderr
    shown = command("resume", seeds, "seed=3")
    assert "resume: seed cannot change within a run" in shown.stderr
