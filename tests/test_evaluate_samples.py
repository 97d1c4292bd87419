"""Evaluations of several samples, their decoding, and the examples that chose no generation."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import germline
from germline.evaluation.held_out import reductions
from germline.record import RunDirectory
from germline.run.inference import open_evaluation
from germline.types import GermlineError
from tests.command_line import command, evaluated
from tests.toy_runs import run

pytestmark = pytest.mark.usefixtures("graded_in_process")

CONFIG = {
    "task": {"kind": "arithmetic", "temperature": 1.0},
    "strategy": {"population": 4, "sigma": 0.05, "learning_rate": 0.05},
    "batch_size": 2,
    "generations": 2,
    "held_out": {"every": 1, "examples": 6},
    "record": {"tensorboard": False},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "sums"
    germline.train(CONFIG, out=path).run()
    return path


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


def test_a_run_may_sample_its_held_out_answers(tmp_path: Path) -> None:
    toy = run(tmp_path / "toy", "held_out.temperature=null")
    recorded = RunDirectory.open(toy).held_out()[-1].score
    same, _ = germline.evaluate(str(toy), limit=5, out=tmp_path / "same.jsonl")
    cold, _ = germline.evaluate(str(toy), limit=5, out=tmp_path / "cold.jsonl", temperature=0.1)
    assert same.values == recorded.values != cold.values
    assert "at temperature 1\n" in evaluated(toy, "--limit", 5)


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
