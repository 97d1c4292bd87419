"""Evaluations of several sources and generations, of several samples, and of unseen examples."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import germline
from germline.evaluation.held_out import reductions
from germline.nano import NANO_DIR
from germline.record import RunDirectory
from germline.run import generate
from germline.run.inference import open_evaluation
from germline.run.weights import find_generation
from germline.types import GermlineError
from tests.command_line import command, evaluated
from tests.toy_runs import run

pytestmark = pytest.mark.usefixtures("graded_in_process")

CONFIG = {
    "task": {"kind": "arithmetic", "temperature": 1.0},
    "space": {"kind": "lora", "rank": 1},
    "strategy": {"population": 4, "sigma": 0.05, "learning_rate": 0.2},
    "batch_size": 2,
    "generations": 3,
    "held_out": {"every": 1, "examples": 6},
    "record": {"tensorboard": False},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "lora"
    list(germline.train(CONFIG, out=path))
    return path


def test_every_generation_scores_what_the_run_recorded(trained: Path, tmp_path: Path) -> None:
    recorded = [one.score for one in RunDirectory.open(trained).held_out()]
    for updates, score in enumerate(recorded):
        measured, _ = germline.evaluate(
            str(trained), limit=6, generation=updates - 1, out=tmp_path / "completions.jsonl"
        )
        assert (measured.generation, measured.values) == (updates, score.values)


def test_models_of_the_same_name_have_files_of_their_own(tmp_path, monkeypatch):
    long = "m" * 120
    sources = ("b/model", "./model", "../model", f"a/{long}", f"b/{long}")
    for folder in ("a", "b"):
        (tmp_path / "here" / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    for source in sources:
        Path(source).symlink_to(NANO_DIR)
    words = ("--task", "arithmetic", "--limit", 2, "--json")
    rows = json.loads(evaluated(*sources, *words))
    files = [row["completions"] for row in rows]
    assert len({*files}) == 5
    assert all(Path(file).exists() for file in files)


def test_the_table_has_a_row_for_every_source_and_generation(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    germline.export(trained, tmp_path / "adapter")
    rows = json.loads(
        evaluated(trained, "nano", "adapter", "-g", -1, "-g", 2, "--limit", 6, "--json")
    )
    assert [(row["source"], row["updates"]) for row in rows] == [
        (str(trained), 0),
        (str(trained), 3),
        ("nano", 0),
        ("adapter", 0),
    ]
    first, last, nano, adapter = rows
    assert first["difference_to_first"] is None
    assert last["difference_to_first"] == pytest.approx(last["mean"] - first["mean"])
    assert adapter["mean"] == last["mean"]
    assert adapter["reward"] == last["reward"]
    assert nano["n"] == 6
    assert len({row["completions"] for row in rows}) == 4
    text = evaluated(trained, "nano", "--limit", 6, "-g", "best")
    names = [line.split("\t")[:2] for line in text.splitlines()[1:3]]
    best = find_generation(RunDirectory.open(trained), "best")
    assert names == [[str(trained), f"best ({best})"], ["nano", "-"]]
    assert "paired over examples" in text


def test_a_model_before_a_run_is_scored_on_the_task_of_the_run(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = CONFIG | {"task": "multiplication", "generations": 1}
    germline.train(other, out=tmp_path / "other").run()
    result = command("eval", "nano", trained, "other", "--limit", 6, "--json")
    assert "other was trained on multiplication; here it is scored on arithmetic" in result.stderr
    nano, last, _ = json.loads(result.stdout)
    assert last["mean"] == germline.evaluate(str(trained), limit=6)[0].mean
    assert (nano["metric"], nano["n"]) == (last["metric"], 6)
    result = command("eval", "nano", "--limit", 6)
    assert "nano is not a run directory, so a task is needed" in result.stderr


@pytest.mark.parametrize("generation", ["1", "-1", "best"])
def test_export_and_replay_write_the_same_weights_of_a_generation(trained, tmp_path, generation):
    words = ("export", trained, "-g", generation, "--merged", "--out")
    for more in ([tmp_path / "exported"], [tmp_path / "replayed", "--verify"]):
        result = command(*words, *more)
        assert (result.exit_code, "digest verified: " in result.stdout) == (0, "--verify" in more)
    exported, replayed = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("exported", "replayed")
    )
    assert exported == replayed


def test_generate_answers_with_the_weights_of_a_generation(trained: Path) -> None:
    prompts = ["What is 7 plus 8?", "What is 3 plus 4?"]
    asked: dict[str, tuple[str, int | None]] = {
        "base": ("nano", None),
        "start": (str(trained), -1),
        "last": (str(trained), 2),
        "newest": (str(trained), None),
    }
    answers = {
        name: [one.tokens for one in generate(source, prompts, generation=generation)]
        for name, (source, generation) in asked.items()
    }
    assert answers["start"] == answers["base"]
    assert answers["last"] == answers["newest"] != answers["base"]
    result = command("generate", "nano", prompts[0], "-g", "best")
    assert result.exit_code == 2
    assert "nano is not a run directory, so it has no generation best" in result.stderr


@pytest.mark.parametrize("refused", [("nowhere/model",), ("-g", 0, "-g", 99)])
def test_a_source_that_is_refused_costs_no_evaluation_of_the_others(refused, trained):
    before = sorted(trained.iterdir())
    done = command("eval", trained, *refused, "--limit", 2)
    assert done.exit_code == 2
    assert sorted(trained.iterdir()) == before


# --- several samples, and the examples that chose no generation


def rows_of(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_samples_are_reduced_over_the_completions_that_are_written(trained: Path) -> None:
    score, file = germline.evaluate(str(trained), limit=20, samples=4)
    rewards = np.array([row["reward"] for row in rows_of(file)]).reshape(4, 20)
    assert [row["sample"] for row in rows_of(file)[::20]] == [0, 1, 2, 3]
    assert score.values == tuple(rewards.mean(axis=0))
    assert score.mean == score.reward == pytest.approx(rewards.mean())
    at_k = {one.metric: one for one in score.at_k}
    assert [*at_k] == ["pass@1", "pass@2", "pass@4", "majority@4"]
    assert at_k["pass@4"].values == tuple(rewards.max(axis=0))
    assert at_k["pass@1"].mean < at_k["pass@2"].mean < at_k["pass@4"].mean
    single, _ = germline.evaluate(str(trained), limit=20, temperature=1.0)
    assert single.values == tuple(rewards[0])  # the first sample has the noise of a single one


def test_held_out_answers_are_greedy_whatever_a_run_trains_with(trained: Path) -> None:
    recorded = RunDirectory.open(trained).held_out()[-1].score
    greedy, _ = germline.evaluate(str(trained), limit=6, temperature=0.0)
    assert greedy.values == recorded.values
    assert ", greedy\n" in evaluated(trained, "--limit", 6)
    (row,) = json.loads(evaluated(trained, "--samples", 2, "--limit", 6, "--json"))
    assert (row["samples"], row["temperature"], row["split"]) == (2, 1.0, "test")
    assert [*row["at_k"]] == ["pass@1", "pass@2"]


def test_the_best_of_a_cost_is_the_lowest_and_a_missing_sample_leaves_an_example_out(tmp_path):
    score, file = germline.evaluate(str(run(tmp_path / "toy", "generations=1")), limit=5, samples=3)
    costs = -np.array([row["reward"] for row in rows_of(file)], dtype=float).reshape(3, 5)
    assert [one.metric for one in score.at_k] == ["best@1", "best@2", "best@3"]
    assert score.at_k[2].values == tuple(costs.min(axis=0))
    costs[1, 0] = np.nan
    best = reductions(costs, None, higher_is_better=False)["best@3"]
    assert np.isnan(best[0])
    assert best[1:].tolist() == costs[:, 1:].min(axis=0).tolist()


def test_unseen_examples_are_those_after_the_held_out_ones(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole, _ = germline.evaluate(str(trained), limit=9)
    unseen, file = germline.evaluate(str(trained), split="unseen", limit=3)
    assert unseen.values == whole.values[6:]
    assert [row["example"] for row in rows_of(file)] == [6, 7, 8]
    words = ("nano", trained, "--task", "arithmetic", "--split", "unseen", "--limit", 3)
    table = json.loads(evaluated(*words, "--json"))
    assert [row["difference_n"] for row in table] == [None, 3]


def test_generations_are_compared_by_progressions_and_regressions(trained: Path) -> None:
    words = (trained, "-g", -1, "-g", 1, "--limit", 30)
    (line,) = evaluated(*words).splitlines()[2:3]
    first, last = json.loads(evaluated(*words, "--json"))
    higher, lower = last["difference_higher"], last["difference_lower"]
    assert higher + lower > 0
    assert f"{higher} progressions, {lower} regressions of 30, p {last['difference_p']:.2g}" in line
    assert last["mean"] - first["mean"] == pytest.approx((higher - lower) / 30)
    low, high = last["difference_interval_95"]
    assert low <= last["difference_to_first"] <= high


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN", "-g", 99], "generation 99 is not in .*0 to 2"),
        (["RUN", "--samples", 2, "--temperature", 0], "samples=2: at temperature 0 all samples"),
        (["RUN", "task.temperature=1"], "task.temperature=1 is .* use --temperature 1"),
        (["RUN", "--samples", 2, "--kl"], "leave out models, adapters and --samples"),
        (["RUN", "nano", "--kl"], "leave out models, adapters and --samples"),
        (["nano", "--task", "arithmetic", "--split", "unseen"], "a model has none"),
    ],
)
def test_what_would_measure_something_else_is_refused(trained, words, message):
    done = command("eval", *(trained if one == "RUN" else one for one in words))
    assert done.exit_code == 2
    assert re.search(message, " ".join(done.stderr.split()))


def test_what_a_run_cannot_answer_is_refused(tmp_path: Path) -> None:
    all_seen = run(tmp_path / "all", "generations=1", "held_out.examples=5000")
    with pytest.raises(GermlineError, match=r"held-out scores of the run were of all \d+ test"):
        germline.evaluate(str(all_seen), split="unseen")
    options = "prompt_search={temperature: [0, 1]}"
    searched = run(tmp_path / "searched", "generations=1", "task.temperature=0", options)
    with pytest.raises(GermlineError, match=r"temperature=0.5: .* searched for its own"):
        germline.evaluate(str(searched), temperature=0.5)
    both = json.loads(evaluated(all_seen, searched, "--limit", 2, "--json"))
    assert [row["temperature"] for row in both] == [1.0, None]
    voting = "method={kind: randopt, ensemble_size: 2}"
    settings = ("strategy={population: 6, sigma: 0.3}", "space=full", voting, "generations=1")
    ensemble = run(tmp_path / "ensemble", *settings)
    with pytest.raises(GermlineError, match="samples=2: an ensemble gives one answer per example"):
        germline.evaluate(str(ensemble), samples=2, limit=2)


def test_the_kl_of_every_generation_is_measured_on_the_examples_that_are_asked(trained):
    words = (trained, "-g", -1, "-g", 1, "--split", "unseen", "--limit", 8, "--kl")
    rows = json.loads(evaluated(*words, "--json"))
    start, last = (row["kl"] for row in rows)
    assert 0.0 == start["per_token"] < last["per_token"]
    assert (last["texts"], rows[1]["behavior"]["texts"]) == (8, 8)
    assert last == asdict(open_evaluation(str(trained), split="unseen", limit=8).measure_kl()[0])
    assert last != asdict(open_evaluation(str(trained), split="test", limit=8).measure_kl()[0])
    (other,) = json.loads(evaluated(trained, "--task", "countdown", "--limit", 4, "--kl", "--json"))
    assert other["kl"]["per_token"] > 0
    assert other["behavior"]["length_drift"] == 1  # the run has no answers to compare with
    (warm,) = json.loads(evaluated(*words[:1], *words[5:], "--temperature", 1, "--json"))
    assert warm["kl"]["texts"] == last["texts"]
    assert warm["kl"]["per_token"] != last["per_token"]
