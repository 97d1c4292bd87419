"""The study of intrinsic dimension: what it concludes, which runs it makes, and what it prints."""

import json
import re
import shutil

import pytest
import yaml
from typer.testing import CliRunner

from germline.cli.application import app
from germline.config import Cma, Subspace
from germline.record import RunDirectory
from germline.run import train
from germline.studies import intrinsic_dimension
from germline.studies.intrinsic_dimension import (
    DimensionRun,
    IntrinsicDimension,
    find_intrinsic_dimension,
    run_dimensions,
)
from germline.types import GermlineError, HeldOutScore
from tests.toy_runs import settings

pytestmark = pytest.mark.usefixtures("graded_in_process")

SMALL = (
    "generations=3",
    "held_out.examples=20",
    "space={kind: low_rank, include: ['*mix*']}",
    "strategy.learning_rate=0.3",
)
"""A toy run that ends better than it began."""


def outcome(dimension, end, *, seed=0, start=0.2):
    scores = (HeldOutScore(at, "exact", mean, 0.0, 9, mean) for at, mean in ((0, start), (5, end)))
    return DimensionRun(dimension, seed, *scores)


def test_the_smallest_dimension_that_keeps_the_share_is_found():
    ends = {None: 1.0, 2: 0.3, 4: 0.91, 8: 0.93, 16: 0.95}
    found = IntrinsicDimension(
        tuple(outcome(d, end) for d, end in ends.items()), higher_is_better=True
    )
    assert found.dimensions == [2, 4, 8, 16]
    assert found.kept(4) == pytest.approx(0.71 / 0.8)
    assert found.smallest == 8
    assert IntrinsicDimension(found.outcomes, higher_is_better=True, share=0.99).smallest is None


def test_a_score_that_falls_can_be_the_better_one():
    runs = (
        outcome(None, 0.0, start=20.0),
        outcome(2, 10.0, start=20.0),
        outcome(4, 1.0, start=20.0),
    )
    found = IntrinsicDimension(runs, higher_is_better=False)
    assert found.kept(2) == pytest.approx(0.5)
    assert found.smallest == 4


def test_run_seeds_are_averaged():
    runs = [outcome(None, 1.0, seed=seed) for seed in (0, 1)]
    runs += [outcome(2, 0.2), outcome(2, 1.0, seed=1)]
    found = IntrinsicDimension(tuple(runs), higher_is_better=True)
    assert found.kept(2) == pytest.approx(0.5)
    assert found.end(2) == pytest.approx(0.6)


def test_a_config_that_improves_nothing_has_no_dimension():
    found = IntrinsicDimension((outcome(None, 0.2), outcome(2, 0.3)), higher_is_better=True)
    with pytest.raises(GermlineError, match=r"does not improve its held-out score \(change 0\)"):
        _ = found.smallest


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study of toy runs: its folder, its config and what it found."""
    folder = tmp_path_factory.mktemp("study") / "runs"
    config = settings(*SMALL)
    return folder, config, list(run_dimensions(config, [3, 5], [0], folder, cma_up_to=3))


def test_runs_are_the_config_as_it_is_and_in_subspaces_of_its_layers(study):
    folder, config, found = study
    # Another test draws a figure beside the runs.
    paths = [path for path in folder.iterdir() if path.is_dir()]
    runs = {path.name: RunDirectory.open(path).config for path in paths}
    assert [(one.dimension, one.seed) for one in found] == [(None, 0), (3, 0), (5, 0)]
    assert runs["as-it-is-seed-0"].space == config.space
    assert runs["as-it-is-seed-0"].strategy == config.strategy
    assert runs["dimension-000005-seed-0"].space == Subspace(dimension=5, include=("*mix*",))
    assert runs["dimension-000005-seed-0"].strategy == config.strategy
    cma = runs["dimension-000003-seed-0"].strategy
    assert isinstance(cma, Cma)
    assert (cma.population, cma.sigma) == (6, 0.3)
    scores = RunDirectory.open(folder / "dimension-000003-seed-0").held_out()
    assert (found[1].start, found[1].end) == (scores[0].score, scores[-1].score)


def test_a_score_is_better_in_the_direction_of_its_task(study):
    assert find_intrinsic_dimension(study[1], study[2]).higher_is_better is False


@pytest.mark.parametrize(
    ("section", "sigma", "unit"),
    [
        ("{kind: nes, population: 6}", 0.1, "rms"),
        ("{kind: nes, population: 6, sigma_unit: constant}", 0.003, "constant"),
        ("{kind: nes, population: 6, sigma: 0.2}", 0.2, "constant"),
        ("{kind: nes, population: 6, sigma: {start: 0.4, end: 0.1}}", 0.4, "constant"),
    ],
)
def test_cma_begins_with_the_sigma_of_the_config_or_where_measuring_does(section, sigma, unit):
    config = settings(*SMALL[:-1], f"strategy={section}")
    cma = intrinsic_dimension._config(config, 3, 0, cma_up_to=3).strategy
    assert isinstance(cma, Cma)
    assert (cma.sigma, cma.unit) == (sigma, unit)


def test_finished_runs_are_taken_as_they_are_and_stopped_ones_go_on(study):
    folder, config, found = study
    finished = folder / "as-it-is-seed-0/journal.jsonl"
    stopped = folder / "dimension-000005-seed-0"
    before, whole = finished.stat().st_mtime_ns, (stopped / "journal.jsonl").read_bytes()
    wanted = RunDirectory.open(stopped).config
    shutil.rmtree(stopped)
    training = train(wanted, stopped)
    for _ in training:
        training.stop()
    assert list(run_dimensions(config, [3, 5], [0], folder, cma_up_to=3)) == found
    assert finished.stat().st_mtime_ns == before
    assert (stopped / "journal.jsonl").read_bytes() == whole


def test_a_folder_with_runs_of_another_config_is_refused(study):
    other = settings(*SMALL, "strategy.sigma=0.1")
    with pytest.raises(
        GermlineError, match=r"run with another strategy\.sigma \(0.3, not 0.1\): choose "
    ):
        list(run_dimensions(other, [3], [0], study[0]))


def test_other_generations_are_named_and_not_what_follows_from_them(study):
    with pytest.raises(GermlineError, match=r"run with another generations \(3, not 4\): "):
        list(run_dimensions(settings(*SMALL, "generations=4"), [3], [0], study[0]))


def test_a_study_of_an_own_task_takes_its_finished_runs_as_they_are(tmp_path):
    rows = tmp_path / "rows.jsonl"
    lines = [json.dumps({"prompt": f"p{n}", "answer": f"a{n}"}) for n in range(20)]
    rows.write_text("\n".join(lines))
    task = f"task={{kind: jsonl, path: {rows}, reward: exact, max_new_tokens: 4}}"
    config = settings("generations=1", "held_out.examples=4", "batch_size=4", task)
    found = list(run_dimensions(config, [3], [0], tmp_path / "runs"))
    assert list(run_dimensions(config, [3], [0], tmp_path / "runs")) == found
    rows.write_text("\n".join(lines[1:]))
    with pytest.raises(GermlineError, match=r"run with another task.digest"):
        list(run_dimensions(config, [3], [0], tmp_path / "runs"))


@pytest.mark.parametrize(
    ("overrides", "dimension", "cma_up_to", "message"),
    [
        ([], 9_999_999, 0, "space.dimension=9999999 is above"),
        ([], 1, 4, "needs at least 2 searched numbers"),
        (
            ["task.temperature=0", "prompt_search.temperature=[0, 1]"],
            4,
            4,
            r"prompt_search \(temperature\)",
        ),
        (
            ["strategy={population: 6}", "method=randopt", "method.ensemble_size=2"],
            4,
            0,
            "does not change the weights",
        ),
    ],
)
def test_what_cannot_be_studied_is_refused_before_anything_is_trained(
    overrides, dimension, cma_up_to, message, tmp_path
):
    config = settings("generations=2", *overrides)
    with pytest.raises(GermlineError, match=message):
        next(run_dimensions(config, [dimension], [0], tmp_path / "runs", cma_up_to))
    assert not (tmp_path / "runs").exists()


def test_the_command_prints_a_table_and_draws(study, tmp_path):
    folder, config, _ = study
    file = tmp_path / "toy.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    words = ["study", "intrinsic-dimension", file, "-d", "5", "-d", "3", "--cma-up-to", "3"]
    shown = CliRunner().invoke(app, [str(word) for word in [*words, "--out", folder]])
    assert shown.exit_code == 0, shown.output
    assert "... dimension 3, seed 0: length_difference " in shown.output
    assert re.search(r"unchanged config\t\S+\t100 %\n3\t\S+\t-?\d+ %\n5\t", shown.output)
    assert "of the improvement" in shown.output
    assert (folder / "intrinsic-dimension.png").stat().st_size > 10_000
