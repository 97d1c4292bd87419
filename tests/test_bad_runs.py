"""Runs on data that has little or nothing to say: sane to the end, or a message that says why not.

With the default strategy and shaping (nes, z_score) on the toy engine.
"""

import io
import math
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

import germline
from germline.cli.run_loop import print_result
from germline.engines.toy import ToyEngine
from germline.record import RunDirectory
from germline.report.run_facts import RunFacts
from germline.tasks.conciseness import ConcisenessTask
from germline.types import GermlineError
from tests.command_line import command
from tests.python_rewards import length
from tests.test_from_python import ON_ROWS
from tests.toy_runs import run

ROWS = 'train = [{"prompt": f"p{i}", "answer": "a", "place": i} for i in range(12)]\n'
TASK = "task={{path: {}, temperature: 1.0, max_new_tokens: 16, stop: [e, t, a, o, i, n, s, ' ']}}"


def task(folder, body, rows=ROWS):
    """Write a task file and return the override that trains on it."""
    file = folder / "task.py"
    file.write_text(f"{rows}\ndef reward(completion, example):\n    return {body}\n")
    return TASK.format(file)


def told(path):
    directory = RunDirectory.open(path)
    return directory.generations(), [entry.update for entry in directory.journal.read()]


def said(path):
    with redirect_stdout(io.StringIO()) as file:
        print_result(RunDirectory.open(path), quiet=True)
    return file.getvalue()


# --- members


@pytest.mark.parametrize("sigma", ["auto", "0.1"])
def test_an_engine_that_ignores_its_members_stops_before_generation_0(sigma, tmp_path, monkeypatch):
    kept = ToyEngine.generate, ToyEngine.log_probabilities
    generate, log_probabilities = (
        lambda self, members, *rest, call=call: call(self, [None] * len(members), *rest)
        for call in kept
    )
    monkeypatch.setattr(ToyEngine, "generate", generate)
    asked = f"strategy.sigma={sigma}"
    run(tmp_path / "scores", asked, "generations=1")  # their scores differ
    monkeypatch.setattr(ToyEngine, "log_probabilities", log_probabilities)
    with pytest.raises(GermlineError, match="members"):
        run(tmp_path / "run", asked)
    assert not told(tmp_path / "run")[1]


# --- held-out examples


def test_a_task_of_a_plugin_without_held_out_examples_trains_and_says_so(tmp_path, monkeypatch):
    train_only = ConcisenessTask.examples
    monkeypatch.setattr(
        ConcisenessTask,
        "examples",
        lambda self, split: train_only(self, split) if split == "train" else [],
    )
    path = run(tmp_path / "run", "generations=6")
    assert len(told(path)[0]) == 6
    assert "held-out: no example could be scored" in said(path)
    assert germline.write_report(path).exists()
    assert "decline" not in [one.code for one in RunFacts(path).findings]
    with pytest.raises(GermlineError, match="has no held-out score, so none is the best"):
        germline.fork(path, "best", (), tmp_path / "new")


def test_one_held_out_example_has_no_error_and_proves_nothing(tmp_path):
    path = run(tmp_path / "run", "generations=8", "held_out.examples=1", "held_out.every=1")
    facts = RunFacts(path)
    assert all(math.isnan(score.standard_error) for score in facts.scores)
    assert "decline" not in [one.code for one in facts.findings]
    assert ", n 1)" in said(path)
    assert germline.write_report(path).exists()


# --- little to compare


def test_a_batch_of_one_example_has_no_halves_and_trains(tmp_path):
    rows, updates = told(run(tmp_path / "run", "batch_size=1", "generations=6"))
    assert all(row["signals"]["agreement"] is None for row in rows)
    assert all(row["signals"]["signal_to_noise"] is None for row in rows)
    assert any(any(update.coefficients) for update in updates)
    assert math.isfinite(rows[-1]["signals"]["walk"])


@pytest.mark.parametrize("antithetic", ["true", "false"])
def test_a_population_of_two_steps_towards_the_better_one(tmp_path, antithetic):
    section = ("strategy.population=2", f"strategy.antithetic={antithetic}", "generations=6")
    rows, updates = told(run(tmp_path / "run", *section))
    length = 1.0 if antithetic == "true" else math.sqrt(0.5)
    for row, update in zip(rows, updates, strict=True):
        # Z-scores of two are +1 and -1 however little they differ, or 0 where they do not.
        expected = 0.0 if row["zero_signal"] else length
        assert math.hypot(*update.coefficients) == pytest.approx(expected)
    assert rows[-1]["signals"]["walk"] == pytest.approx(0.1 * length * math.sqrt(6), rel=0.1)


# --- rewards of any size


@pytest.mark.parametrize("size", ["1e300", "1e-300"])
def test_rewards_at_the_ends_of_float64_train_without_a_warning(tmp_path, size):
    path = run(tmp_path / "run", task(tmp_path, f"{size} * len(completion)"))
    rows, updates = told(path)
    assert all(np.isfinite(update.coefficients).all() for update in updates)
    assert all(abs(row["signals"]["agreement"] or 0.0) <= 1 for row in rows)
    assert germline.write_report(path).exists()


# --- rewards that are no numbers


def test_the_path_of_a_missing_run_is_not_taken_for_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "march").mkdir()
    for name in ("sums", "words"):
        run(Path("march") / name, "generations=1")
    for source, said in {
        "march/typo": "march/sums, march/words",
        "march/sum": "did you mean 'march/sums'?",
        "runs/typo": "runs/typo/run.json",
    }.items():
        shown = command("eval", source, "--task", "countdown")
        assert (shown.exit_code, said in shown.stderr) == (2, True)


def test_held_out_prompts_that_are_trained_on_are_told(tmp_path, caplog):
    rows = [{"prompt": f"{n}?", "answer": str(n)} for n in range(6)]
    given = {"train": rows, "test": rows[4:]}
    germline.train(ON_ROWS, tmp_path / "both", reward=length, data=given)
    assert "held-out prompts that are also trained on: 2, such as '4?', so the" in caplog.text
    caplog.clear()
    germline.train(ON_ROWS, tmp_path / "one", reward=length, data=rows)
    assert "also trained on" not in caplog.text
