"""Several run seeds of one config: the runs of each seed alone, resumable, with one report."""

import json
import math
import shutil
import statistics
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml

import germline
from germline.config import load_config
from germline.evaluation.held_out import score_of_values
from germline.evaluation.statistics import seed_difference, seed_statistics
from germline.record import RunDirectory
from germline.record.early_stopping import best_score
from germline.record.run_paths import counted_seeds
from germline.report.comparison import seed_groups
from germline.report.run_facts import RunFacts, next_commands
from germline.report.text_format import number
from germline.studies.run_seeds import SeedStudy, parse_seeds, train_seeds
from germline.types import GermlineError
from tests.command_line import command
from tests.documented_fields import field_tables, undocumented
from tests.synthetic_runs import BATCH, DIGEST, record
from tests.toy_runs import journal

pytestmark = pytest.mark.usefixtures("graded_in_process")

CONFIG = {
    "engine": "toy",
    "task": "conciseness",
    "strategy": {"population": 4, "sigma": 0.1, "learning_rate": 0.1},
    "batch_size": 2,
    "generations": 3,
    "held_out": {"every": 1, "examples": 4},
    "record": {"tensorboard": False},
}


def finish(study: SeedStudy) -> None:
    for training in study.trainings():
        list(training)


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


def test_seeds_that_a_smaller_list_leaves_out_are_trained_on_with_the_others(tmp_path):
    finish(train_seeds({**CONFIG, "generations": 1}, [0, 2], tmp_path))
    finish(train_seeds({**CONFIG, "generations": 2}, [1, 0], tmp_path))
    assert SeedStudy.open(tmp_path).seeds == (0, 2, 1)
    assert [len(journal(tmp_path / f"seed-{n}").splitlines()) for n in range(3)] == [2] * 3


def test_relative_paths_of_a_study_mean_the_same_files_from_any_folder(tmp_path, monkeypatch):
    rows = [{"prompt": f"{number}?", "answer": "x"} for number in range(10)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    config = {**CONFIG, "task": {"kind": "jsonl", "path": "rows.jsonl", "max_new_tokens": 4}}
    next(train_seeds(config, [0, 1], "seeds").trainings()).run()
    next(train_seeds(config, [0, 1], "seeds").trainings())
    monkeypatch.chdir(tmp_path / "elsewhere")
    finish(SeedStudy.open(tmp_path / "seeds"))
    assert journal(tmp_path / "seeds" / "seed-1")


def test_a_study_whose_strategy_chooses_the_population_goes_on(tmp_path: Path) -> None:
    space = {"kind": "subspace", "dimension": 4}
    config = {**CONFIG, "space": space, "strategy": {"kind": "sep_cma", "sigma": 0.1}}
    finish(train_seeds(config, [0], tmp_path / "seeds"))
    finish(train_seeds(config, [0], tmp_path / "seeds"))


def test_the_folder_of_another_run_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    list(germline.train(CONFIG, out=tmp_path / "run"))
    before = (tmp_path / "run" / "report.html").read_bytes()
    with pytest.raises(GermlineError, match=r"is the run directory of one run.*--out"):
        finish(train_seeds(CONFIG, [0, 1], tmp_path / "run"))
    assert not (tmp_path / "run" / "seeds.json").exists()
    assert (tmp_path / "run" / "report.html").read_bytes() == before


@pytest.mark.parametrize("seeds", [[0, 3, 3], [], [0, True]])
def test_seeds_are_whole_numbers_each_once(seeds: list[int]) -> None:
    with pytest.raises(GermlineError, match=r"^seeds=.*each once"):
        train_seeds(CONFIG, seeds)


def test_the_interval_of_a_mean_over_seeds_is_that_of_students_t() -> None:
    few = seed_statistics([0.0, 1.0, 2.0, 3.0])
    assert (few.smallest, few.largest) == (0, 3)
    assert math.isnan(few.low + few.high)
    scores = [math.sqrt(prime) for prime in (2, 3, 5, 7, 11, 13, 17, 19)]
    found = seed_statistics(scores)
    # 2.364624 is the 97.5 % quantile of Student's t with 7 degrees of freedom.
    half = 2.364624 * statistics.stdev(scores) / math.sqrt(8)
    ends = (found.mean - half, found.mean + half)
    assert (found.low, found.high) == pytest.approx(ends, rel=1e-6)
    equal = seed_statistics([0.3] * 5)
    assert (equal.low, equal.high) == (equal.mean, equal.mean)


def test_the_command_trains_every_seed_and_sums_them_up(tmp_path: Path) -> None:
    config, out = tmp_path / "config.yaml", tmp_path / "seeds"
    config.write_text(yaml.safe_dump(CONFIG))
    result = command("train", config, "seeds=0..2", "--out", out)
    assert result.exit_code == 0, result.output
    facts = json.loads((out / "seeds.json").read_text())
    assert [row["seed"] for row in facts["results"]] == [0, 1, 2]
    scores = [row.score for row in RunDirectory.open(out / "seed-0").held_out()]
    assert (best := best_score(scores)) is not None
    assert facts["results"][0]["best_generation"] == best.generation
    ends = [row["end"] for row in facts["results"]]
    assert facts["over_seeds"]["end"]["mean"] == pytest.approx(sum(ends) / 3)
    assert facts["over_seeds"]["end"]["low"] is None
    page = (out / "report.html").read_text()
    assert f" over seeds by updates: {out.name} from " in page
    assert f"<td>{out.name}</td>" in page
    for seeds in ("seeds=0..2", "seeds=0..3"):  # more are added by the same command
        again = command("train", config, seeds, "-q", "--out", out)
        assert again.exit_code == 0, again.output
    assert [file.name for file in sorted(out.glob("seed-*"))] == [f"seed-{n}" for n in range(4)]
    refused = command("resume", out, "seeds=5,6")
    assert "did you mean germline train CONFIG seeds=0..4?" in refused.stderr
    refused = command("train", config, "sweep.seeds=3")
    assert "did you mean germline sweep CONFIG --over SPACE?" in refused.stderr


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three run seeds, of which two are trained."""
    folder = tmp_path_factory.mktemp("runs") / "five"
    trainings = train_seeds(CONFIG, [0, 3, 7], folder).trainings()
    for _ in range(2):
        list(next(trainings))
    return folder


def test_eval_says_the_mean_over_the_seeds_of_each_folder(study: Path, tmp_path: Path) -> None:
    list(next(train_seeds({**CONFIG, "batch_size": 3}, [0], tmp_path / "one").trainings()))
    other = tmp_path / "other"
    for training in train_seeds({**CONFIG, "batch_size": 3}, [0, 3], other).trainings():
        list(training)
    words = ("eval", study, other, tmp_path / "one", "--limit", 3)
    rows = json.loads(command(*words, "--json").stdout)
    means = [row["mean"] for row in rows]
    sentences = [line for line in command(*words).stdout.splitlines() if line.startswith("over")]
    first, second = (sum(pair) / 2 for pair in (means[:2], means[2:4]))
    of_study, of_other = sentences  # of one run seed there is no mean
    assert of_study == f"over the 2 run seeds of {study}: {number(first)}"
    assert f"{other}: {number(second)}" in of_other


def test_a_model_is_no_run_seed_of_the_folder_it_is_named_in(study, monkeypatch):
    monkeypatch.chdir(study)
    shown = command("eval", "seed-0", "nano", "--limit", 1, "--task", "arithmetic")
    assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize(
    "words",
    [
        ("export", "STUDY", "--out", "OUT"),
        ("generate", "STUDY", "a"),
        ("export", "STUDY", "--verify", "-g", "1"),
        ("resume", "STUDY/", "--from", "1"),
    ],
    ids=" ".join,
)
def test_what_needs_one_run_names_the_runs(study: Path, tmp_path: Path, words: list[str]) -> None:
    given = (word.replace("STUDY", str(study)).replace("OUT", str(tmp_path)) for word in words)
    shown = command(*given)
    assert shown.exit_code == 2
    assert f"{study}/seed-0, {study}/seed-3" in shown.stderr
    with pytest.raises(GermlineError, match=r"several run seeds .*seed-0, .*seed-3"):
        germline.evaluate(str(study))


# --- trained on


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


def test_more_generations_train_all_seeds_on_to_the_bits_of_longer_runs(seeds, tmp_path):
    shown = command("resume", seeds, "generations=5", "-q")
    assert shown.exit_code == 0, shown.output
    finish(train_seeds({**CONFIG, "generations": 5}, [0, 1, 2], tmp_path / "long"))
    for seed in (0, 1, 2):
        run = f"seed-{seed}"
        assert journal(seeds / run) == journal(tmp_path / "long" / run)
    assert SeedStudy.open(seeds).config.generations == 5
    assert groups(seeds) == [[0, 1, 2]]


def test_a_seed_that_was_trained_on_alone_is_not_averaged_with_the_others(seeds):
    list(germline.resume(seeds / "seed-0", ["generations=4"]))
    assert groups(seeds) == [[1, 2]]
    with pytest.raises(
        GermlineError, match=r"seed-0 was run with another generations \(4, not 3\)"
    ):
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
    assert early.stopped_by
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


def test_settings_of_the_scores_cannot_change(seeds: Path) -> None:
    shown = command("resume", seeds, "held_out.examples=3")
    assert shown.exit_code == 2
    assert "seed-0 was run with another held_out.examples (4, not 3)" in shown.stderr
    shown = command("resume", seeds, "seed=3")
    assert "resume: seed cannot change within a run" in shown.stderr


ROOT = Path(__file__).parent.parent
LOW, HIGH = (0.30, 0.31, 0.29, 0.32, 0.28), (0.40, 0.42, 0.41, 0.42, 0.35)


def train(folder: Path, ends: Mapping[int, float], batch_size: int) -> Path:
    """Write a folder of run seeds of which each has a score before and one after training."""
    folder.mkdir()
    (folder / "seeds.json").write_text(json.dumps({"seeds": list(ends), "config": {}}))
    settings = {"task": "arithmetic", "batch_size": batch_size, "generations": 1}
    for seed, end in ends.items():
        config = load_config({**settings, "seed": seed})
        run = RunDirectory.create(folder / f"seed-{seed}", config, DIGEST, threads=1)
        for generation, mean in enumerate((0.1, end)):
            if generation:
                run.write(record(0), BATCH)
            score = score_of_values(generation, "exact", [mean, mean], higher_is_better=True)
            run.write_held_out(score, [], BATCH)
    return folder


def report(*words: object) -> str:
    done = command("report", *words)
    assert done.exit_code == 0, done.output
    return done.stdout


def by_seed(values: tuple[float, ...]) -> dict[int, float]:
    return dict(enumerate(values))


def test_the_interval_of_few_seeds_covers_what_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for values in rng.normal(size=(1000, 2, 4)):
        low, high = seed_difference(*map(by_seed, values)).interval or (math.nan, math.nan)
        covered += low < 0 < high
    assert 0.93 < covered / 1000 < 0.97


def test_means_over_seeds_are_printed_and_in_json(tmp_path: Path) -> None:
    first = train(tmp_path / "narrow", by_seed(LOW), 2)
    second = train(tmp_path / "wide", by_seed(HIGH), 3)
    words = (first, second, "--out", tmp_path / "page.html")
    lines = report(*words).splitlines()
    assert any(line.startswith("wide\texact\t5\t0.1 (all values equal)\t0.4 [") for line in lines)
    document = json.loads(report(*words, "--json"))
    tables = field_tables(ROOT / "docs/run-directory.md", "JSON output")
    assert undocumented(document, tables["report"], score=tables["score"]) == []
    assert [group["name"] for group in document["seed_groups"]] == ["narrow", "wide"]


def test_the_same_difference_in_every_seed_has_no_interval() -> None:
    for raised in (0.1, 0.0):
        found = seed_difference({0: 0.3, 1: 0.4}, {0: 0.3 + raised, 1: 0.4 + raised})
        assert found.mean == pytest.approx(-raised)
        assert found.interval is None


def test_a_seed_that_was_stopped_early_does_not_count(tmp_path: Path) -> None:
    folder = train(tmp_path / "a", by_seed((0.3, 0.4)), 2)
    config = load_config({"task": "arithmetic", "batch_size": 2, "generations": 1, "seed": 2})
    stopped = RunDirectory.create(folder / "seed-2", config, DIGEST, threads=1)
    untrained = score_of_values(0, "exact", [0.9, 0.9], higher_is_better=True)
    stopped.write_held_out(untrained, [], BATCH)
    (folder / "seeds.json").write_text(json.dumps({"seeds": [0, 1, 2], "config": {}}))
    said = report(folder, "--out", tmp_path / "page.html")
    assert "a\texact\t2\t0.1\t0.35\t0.35\n" in said
    assert "Seeds of a that do not count, as their training has not ended: 2 (" in said
    (group,) = json.loads(report(folder, "--out", tmp_path / "page.html", "--json"))["seed_groups"]
    assert group["over_seeds"]["end"]["mean"] == pytest.approx(0.35)
    assert [row["seed"] for row in group["results"]] == [0, 1]
    assert counted_seeds([True, False, False], [16, 3, 0]) == [0]
    assert counted_seeds([False, False, False], [0, 3, 5]) == [1, 2]  # until one has ended


@pytest.mark.parametrize("seeds", [(0, 1), (5, 6)])
def test_equal_means_differ_by_nothing_and_not_by_rounding(seeds: tuple[int, int]) -> None:
    one, other = {0: 0.34, 1: 0.34}, dict(zip(seeds, (0.36, 0.32), strict=True))
    assert seed_difference(one, other).mean == 0
    assert seed_difference(one, {seed: value - 1e-9 for seed, value in other.items()}).mean > 0
