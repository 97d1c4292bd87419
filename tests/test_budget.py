"""What a run spends: counted for every method, likewise after a resume; a limit ends the run."""

import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import germline
from germline.config import Budget, MicrobatchSettings
from germline.evaluation import score_center
from germline.fleet import LocalFleet
from germline.protocols import ScoringGroup
from germline.record import RunDirectory
from germline.record.early_stopping import best_score, early_stop, reached_limit
from germline.report.run_facts import RunFacts
from germline.run.training import _cpu_s
from germline.types import Completion, Example, GermlineError, HeldOutScore
from tests.command_line import command
from tests.hang_limit import wait_until
from tests.test_es_sample_gd import config as gradient_config
from tests.tiny_runs import zo_grpo_run
from tests.toy_runs import ADAM_FULL, finish, run, settings, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")

COUNTS = (
    *("rollouts", "tokens", "forward_tokens", "backward_tokens"),
    *("forward_flops", "backward_flops"),
)


def counted(folder: Path) -> dict[str, float]:
    spent = RunDirectory.open(folder).spent
    return {name: spent[name] for name in COUNTS}


def test_members_count_their_rollouts_and_whole_texts(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "record.rollouts=100")
    directory = RunDirectory.open(folder)
    spent = directory.spent
    texts = directory.rollouts()
    assert spent["rollouts"] == len(texts) == 4 * 6 * 4
    assert spent["tokens"] == sum(row["tokens"] for row in texts)
    prompts = sum(len(row["prompt"]) for row in texts)  # of the toy engine, a token a character
    assert spent["forward_tokens"] == prompts + spent["tokens"]
    # 96 x 8 of the tables of embeddings are looked up; mix, its bias and read multiply.
    weights = 8 * 8 + 8 + 96 * 8
    assert spent["forward_flops"] == 2 * weights * spent["forward_tokens"]
    assert spent["backward_tokens"] == spent["backward_flops"] == 0
    assert spent["cpu_s"] > 0
    assert spent["wall_s"] > 0


def test_the_processor_time_of_graders_counts():
    before = _cpu_s() - time.process_time()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        wait_until(lambda: _cpu_s() - time.process_time() > before + 0.2)
        busy.kill()


def test_held_out_scores_are_counted_apart(tmp_path: Path) -> None:
    often = run(tmp_path / "often", "held_out.every=1", "held_out.examples=5")
    seldom = run(tmp_path / "seldom", "held_out.every=100", "held_out.examples=5")
    assert counted(often) == counted(seldom)
    # Of the start and after generations 0 to 2; the score of the end follows the last row.
    assert RunDirectory.open(often).spent["held_out"]["rollouts"] == 4 * 5
    assert RunDirectory.open(seldom).spent["held_out"]["rollouts"] == 5


def test_scoring_members_count_what_they_read(tmp_path: Path, model: Path) -> None:
    config = zo_grpo_run(model, "generations=1", "strategy.learning_rate=1", "record.rollouts=100")
    folder = finish(germline.train(config, tmp_path / "run"))
    directory = RunDirectory.open(folder)
    (row,) = directory.generations()
    assert row["budget"]["rollouts"] == 3 * 4
    # Beside the samples, members and the center read prompts and the tokens that they score.
    read = row["budget"]["forward_tokens"] - row["tokens"]
    assert read > row["tokens_scored"] > 0


def test_each_member_of_a_group_counts_every_text_that_it_scores() -> None:
    class Scored:
        def log_probabilities(self, members, examples, completions):
            return [[[0.0] * len(one.tokens) for one in row] for row in completions]

    fleet = LocalFleet(Scored(), None, MicrobatchSettings())  # type: ignore[arg-type]
    texts = [Completion("ab", (1, 2), "eos", 5), Completion("c", (3,), "eos", 4)]
    prompts = [Example(0, "a", "", chat=False), Example(1, "b", "", chat=False)]
    groups = [
        ScoringGroup([None] * 3, prompts, texts),
        ScoringGroup([None], prompts[1:], texts[1:]),
    ]
    assert fleet.score(groups) == [[[0.0, 0.0], [0.0]]] * 3 + [[[0.0]]]
    assert fleet.counts == {"forward_tokens": 3 * (7 + 5) + 5}


def test_a_method_that_backpropagates_counts_its_gradient(tmp_path: Path, model: Path) -> None:
    config = gradient_config(model, "method.exploration=temperature", "task.temperature=1")
    folder = finish(germline.train(config, tmp_path / "run"))
    directory = RunDirectory.open(folder)
    spent, rows = directory.spent, directory.generations()
    backward = sum(row["backward_tokens"] for row in rows)
    assert spent["backward_tokens"] == backward > 0
    sampled = spent["forward_tokens"] - backward  # what was generated, read once
    assert spent["tokens"] < sampled <= spent["tokens"] + backward * 4
    # All weights of the searched space follow: 2 N forwards and 4 N backwards for each token.
    assert spent["backward_flops"] > spent["forward_flops"] * backward / spent["forward_tokens"]


def test_a_resumed_run_has_counted_the_same(tmp_path: Path) -> None:
    measured = ("strategy.sigma=auto", "strategy.sigma.keep=false", *ADAM_FULL)
    whole = run(tmp_path / "whole", *measured)
    config = settings(*measured)
    part = stopped_after(germline.train(config, tmp_path / "part"), 2)
    finish(germline.resume(part))
    assert counted(part) == counted(whole)
    rollouts = sum(row["rollouts"] for row in RunDirectory.open(part).generations())
    assert counted(part)["rollouts"] > rollouts  # with those of the calibration


@pytest.mark.parametrize(
    ("limits", "reached"),
    [
        ({}, None),
        ({"rollouts": 100}, "budget.rollouts=100"),
        ({"rollouts": 101, "tokens": 6e3}, "budget.tokens=6000"),
        ({"flops": 30}, "budget.flops=30"),
        ({"flops": 31, "cpu_minutes": 2}, "budget.cpu_minutes=2"),
        ({"minutes": 1.5}, "budget.minutes=1.5"),
        ({"rollouts": 101, "minutes": 2}, None),
    ],
)
def test_the_first_limit_that_is_reached(limits: dict[str, float], reached: str | None) -> None:
    spent = {
        "rollouts": 100,
        "tokens": 6000,
        "forward_flops": 10.0,
        "backward_flops": 20.0,
        "cpu_s": 120.0,
        "wall_s": 90.0,
    }
    ending = reached_limit(Budget(**limits), spent)
    assert (ending and ending.setting) == reached


def test_a_spent_budget_ends_a_run_and_a_larger_one_trains_on(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    result = command("train", as_file(tmp_path), "budget.rollouts=30", "--out", tmp_path / "part")
    assert result.exit_code == 0
    assert "Stopped early after 2 of 4 generations, as the budget is spent" in result.output
    directory = RunDirectory.open(tmp_path / "part")
    assert directory.journal.last_generation() == 1
    assert directory.stopped_by == "budget.rollouts=30"
    assert directory.has_ended
    assert directory.held_out()[-1].score.generation == 2
    assert RunFacts(directory.path).shown_state == "stopped early"
    assert "the budget is spent (budget.rollouts=30)" in directory.report.read_text()
    again = json.loads(command("resume", directory.path, "--json").output)
    assert (
        "budget.rollouts=30: the run stopped early, as the budget is spent"
        in again["error"]["message"]
    )
    assert f"germline resume {directory.path} budget.rollouts=96" in result.output  # 48 are spent
    with pytest.raises(GermlineError, match=r"budget.rollouts=48: the run stopped early"):
        germline.resume(directory.path, ["budget.rollouts=48"])
    # The score was due and the run ended: it is computed once, and resumed like any other.
    _, due, end = map(json.loads, (directory.path / "held_out.jsonl").read_text().splitlines())
    assert {**end, "completions": []} == due
    finish(germline.resume(directory.path, ["budget.rollouts=null"]))
    for name in ("journal.jsonl", "held_out.jsonl"):
        assert (directory.path / name).read_bytes() == (whole / name).read_bytes()


def test_a_score_at_the_end_of_a_run_is_computed_once(tmp_path: Path, monkeypatch) -> None:
    scored: list[int] = []

    def score(*given: Any) -> Any:
        scored.append(given[4])
        return score_center(*given)

    monkeypatch.setattr("germline.run.training.score_center", score)
    run(tmp_path / "run", "budget.rollouts=30")
    assert scored == [0, 2]


def as_file(folder: Path) -> Path:
    from germline.config.config_files import as_yaml

    file = folder / "toy.yaml"
    file.write_text(as_yaml(settings().model_dump(mode="json")))
    return file


# --- the best held-out score of a run, and a run that ends once its score no longer improves


ONE_SCORE_A_GENERATION = {
    "engine": "toy",
    "task": "conciseness",
    "batch_size": 2,
    "generations": 12,
    "held_out": {"every": 1, "examples": 4},
    "record": {"tensorboard": False},
}


def scores(*means: float) -> list[HeldOutScore]:
    return [
        HeldOutScore(g, "right", mean, 0.0, 4, mean, proportion=True, higher_is_better=True)
        for g, mean in enumerate(means)
    ]


@pytest.mark.parametrize(
    ("changes", "best"),
    [
        ({}, 1),  # the first of the highest
        ({"higher_is_better": False}, 0),
        ({"reward": math.nan}, 1),
        ({"mean": math.nan}, None),
    ],
)
def test_the_best_score_is_the_first_of_the_highest_or_of_the_lowest_cost(changes, best):
    found = best_score([replace(one, **changes) for one in scores(0.2, 0.8, 0.8, 0.6)])
    assert (found and found.generation) == best
    assert best_score([]) is None


def frozen(**changes: object) -> dict[str, object]:
    """Return a config whose weights never move, so that no score is better than the first."""
    strategy = {"population": 4, "sigma": 0.1, "learning_rate": 1e-12}
    return {**ONE_SCORE_A_GENERATION, "strategy": strategy, **changes}


def trained(path: Path, **changes: object) -> RunDirectory:
    training = germline.train(frozen(**changes), out=path)
    list(training)
    return training.directory


def test_patience_counts_the_scores_after_the_best_one() -> None:
    assert early_stop(scores(0.1, 0.5, 0.4), 2) is None
    ending = early_stop(scores(0.1, 0.5, 0.4, 0.5), 2)
    assert ending is not None
    assert "better than that after 1 update" in ending.reason
    assert early_stop(scores(0.1, 0.5, 0.4, 0.6), 2) is None
    assert early_stop(scores(0.1, 0.1, 0.1, 0.1), None) is None


def test_a_score_that_could_not_be_computed_counts_as_not_better() -> None:
    assert early_stop(scores(0.1, np.nan, np.nan), 2) is not None
    assert early_stop(scores(np.nan, np.nan, np.nan), 2) is None


def test_a_run_stops_early_and_says_so(tmp_path: Path) -> None:
    directory = trained(tmp_path / "run", held_out={"every": 1, "examples": 4, "patience": 3})
    assert directory.journal.last_generation() + 1 == 3
    assert directory.ending is not None
    assert directory.ending.setting == "held_out.patience=3"
    assert "better than that after 0 updates" in directory.ending.reason
    assert directory.held_out()[-1].samples  # the report shows the answers of the last weights
    assert RunFacts(directory.path).state == "finished"
    assert "\tstopped early" in command("list", "runs", tmp_path).output
    assert "stopped early" in directory.report.read_text()


def test_patience_changes_no_digest_and_a_larger_one_trains_on(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole").journal.read()
    early = trained(tmp_path / "early", held_out={"every": 1, "examples": 4, "patience": 3})
    with pytest.raises(GermlineError, match=r"patience=3: the run stopped early.*patience=6"):
        germline.resume(early.path)
    list(germline.resume(early.path, ["held_out.patience=null"]))
    assert [one.digest for one in RunDirectory.open(early.path).journal.read()] == [
        one.digest for one in whole
    ]
