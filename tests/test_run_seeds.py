"""Several run seeds of one config: the runs of each seed alone, resumable, with one report."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import germline
from germline.cli.application import app
from germline.evaluation.seed_statistics import seed_statistics
from germline.studies.run_seeds import SeedStudy, parse_seeds, train_seeds
from germline.types import GermlineError

CONFIG = {
    "engine": "toy",
    "task": "conciseness",
    "strategy": {"population": 4, "sigma": 0.1, "learning_rate": 0.1},
    "batch_size": 2,
    "generations": 3,
    "held_out": {"every": 1, "examples": 4},
    "record": {"tensorboard": False, "figure_every": 100},
}


def finish(study: SeedStudy) -> None:
    for training in study.trainings():
        list(training)


def journal(path: Path) -> bytes:
    return (path / "journal.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0..4", (0, 1, 2, 3, 4)), ("0,3,7", (0, 3, 7)), ("5", (5,)), ("[1, 2]", (1, 2))],
)
def test_seeds_are_a_range_or_a_list(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "4..0", "0..100000", "a,b", "-1", "0..", "1.5"])
def test_other_seeds_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(GermlineError, match=r"^seeds=.*seeds=0\.\.4"):
        parse_seeds(text)


def test_every_seed_has_the_bits_of_a_run_of_its_own(tmp_path: Path) -> None:
    finish(train_seeds(CONFIG, "0,3", tmp_path / "both"))
    list(germline.train({**CONFIG, "seed": 3}, out=tmp_path / "alone"))
    assert journal(tmp_path / "both" / "seed-3") == journal(tmp_path / "alone")
    assert journal(tmp_path / "both" / "seed-0") != journal(tmp_path / "alone")


def test_an_interrupted_study_goes_on_from_its_folder(tmp_path: Path) -> None:
    finish(train_seeds(CONFIG, [0, 1], tmp_path / "whole"))
    training = next(train_seeds(CONFIG, [0, 1], tmp_path / "cut").trainings())
    next(iter(training))
    training.stop()
    del training  # its claim on the run directory ends with it
    finish(SeedStudy.open(tmp_path / "cut"))
    for seed in (0, 1):
        assert journal(tmp_path / "cut" / f"seed-{seed}") == journal(
            tmp_path / "whole" / f"seed-{seed}"
        )


def test_a_folder_of_another_config_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    finish(train_seeds(CONFIG, [1], tmp_path / "seeds"))
    other = train_seeds({**CONFIG, "batch_size": 3}, [0, 1], tmp_path / "seeds")
    with pytest.raises(GermlineError, match=r"seed-1 was run with another batch_size \(2, not 3\)"):
        next(other.trainings())
    assert not (tmp_path / "seeds" / "seed-0").exists()


def test_the_same_seed_twice_and_no_seed_are_refused() -> None:
    with pytest.raises(GermlineError, match="seeds: 3 is given twice"):
        train_seeds(CONFIG, [0, 3, 3])
    with pytest.raises(GermlineError, match="seeds: found none"):
        train_seeds(CONFIG, [])


def test_the_folder_of_another_run_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    list(germline.train(CONFIG, out=tmp_path / "run"))
    before = (tmp_path / "run" / "report.html").read_bytes()
    with pytest.raises(GermlineError, match=r"is the run directory of one run.*--out"):
        finish(train_seeds(CONFIG, [0, 1], tmp_path / "run"))
    assert not (tmp_path / "run" / "seeds.json").exists()
    assert (tmp_path / "run" / "report.html").read_bytes() == before


def test_a_seed_that_is_no_number_is_refused() -> None:
    with pytest.raises(GermlineError, match="seeds: True is no whole number"):
        train_seeds(CONFIG, [0, True])


def test_the_interval_holds_the_mean_and_needs_three_seeds() -> None:
    few, more = seed_statistics([0.0, 1.0]), seed_statistics([0.0, 1.0, 2.0, 3.0, 4.0])
    assert few.low != few.low  # NaN
    assert more.smallest <= more.low < more.mean < more.high <= more.largest
    assert (more.mean, more.seeds) == (2.0, 5)
    assert seed_statistics([0.0, 1.0, 2.0, 3.0, 4.0]) == more


def test_the_command_trains_every_seed_and_sums_them_up(tmp_path: Path) -> None:
    config, out = tmp_path / "config.yaml", tmp_path / "seeds"
    config.write_text(yaml.safe_dump(CONFIG))
    command = ["train", str(config), "seeds=0..2", "-q", "--out", str(out)]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "95 % interval" in result.output
    facts = json.loads((out / "seeds.json").read_text())
    assert [row["seed"] for row in facts["results"]] == [0, 1, 2]
    ends = [row["end"] for row in facts["results"]]
    assert facts["over_seeds"]["end"]["mean"] == pytest.approx(sum(ends) / 3)
    page = (out / "report.html").read_text()
    assert "Over run seeds" in page
    assert "worst to best seed" in page
    again = CliRunner().invoke(app, ["report", str(out), "--out", str(tmp_path / "page.html")])
    assert again.exit_code == 0
    assert "3 runs side by side" in (tmp_path / "page.html").read_text()


def test_seeds_and_seed_together_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(CONFIG))
    result = CliRunner().invoke(app, ["train", str(config), "seeds=0..2", "seed=1"])
    assert result.exit_code != 0
    assert "drop one of them" in str(result.output) + str(result.exception)
