"""The verbs end to end, on the toy engine: what is asked for happens, and a stopped run goes on."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from germline.cli.application import app
from germline.record import Journal, RunDirectory
from germline.types import Update
from tests.hang_limit import HANG_S

CONFIG = """
task: conciseness
engine: toy
generations: 5
batch_size: 4
strategy: {population: 4, sigma: 0.3, learning_rate: 0.3}
held_out: {every: 2, examples: 4}
record: {snapshot_every: 2, figure_every: 100, tensorboard: false}
"""


def germline(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def journal(run: Path) -> bytes:
    return (run / "journal.jsonl").read_bytes()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "toy.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def trained(config: Path) -> tuple[Path, str]:
    """A finished run, and what training printed."""
    run = config.parent / "run"
    shown = germline("train", config, "--out", run)
    assert shown.exit_code == 0, shown.output
    return run, shown.stdout


def test_mistake_17_a_run_has_exactly_the_generations_asked_for(trained: tuple[Path, str]) -> None:
    run, printed = trained
    assert RunDirectory.open(run).journal.last_generation() == 4
    assert re.findall(r"^generation (\d) \((\d)/5\)", printed, re.MULTILINE) == [
        ("0", "1"),
        ("1", "2"),
        ("2", "3"),
        ("3", "4"),
        ("4", "5"),
    ]


def test_mistake_17_held_out_scores_come_when_they_are_due(trained: tuple[Path, str]) -> None:
    scores = RunDirectory.open(trained[0]).held_out()
    assert [one.score.generation for one in scores] == [0, 2, 4, 5]


def test_mistake_17_an_override_reaches_the_run(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("generations=2", "strategy.sigma=2e-1", "seed=5", "space=full")
    assert germline("train", config, *words, "--out", run, "-q").exit_code == 0
    update = RunDirectory.open(run).journal.read()[-1].update
    assert isinstance(update, Update)
    assert (update.generation, update.sigma, update.run_seed) == (1, 0.2, 5)
    assert RunDirectory.open(run).config.space.kind == "full"


def test_a_run_in_two_parts_has_the_journal_of_one(
    config: Path, trained: tuple[Path, str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert germline("train", config, "generations=3", "--out", run, "-q").exit_code == 0
    shown = germline("resume", run, "generations=5", "--quiet")
    assert shown.exit_code == 0
    assert journal(run) == journal(trained[0])


@pytest.mark.slow
def test_ctrl_c_stops_after_the_generation_and_the_run_goes_on(
    config: Path, trained: tuple[Path, str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = ["train", str(config), "generations=100000", "held_out.every=100000", "--out", str(run)]
    training = subprocess.Popen(
        [sys.executable, "-m", "germline", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    deadline = time.monotonic() + HANG_S
    while Journal(run / "journal.jsonl").last_generation() < 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    training.send_signal(signal.SIGINT)
    out, err = training.communicate(timeout=HANG_S)
    last = Journal(run / "journal.jsonl").last_generation()
    assert training.returncode == 130
    assert "Finishing what is running, then stopping." in err
    assert out.endswith(
        f"Stopped after generation {last} ({last + 1} of 100000 done). "
        f"Resume with: germline resume {run}\n"
    )
    length = max(5, last + 2)
    assert germline("resume", run, f"generations={length}", "-q").exit_code == 0
    assert journal(run).splitlines()[:5] == journal(trained[0]).splitlines()


def test_verify_rebuilds_any_generation(trained: tuple[Path, str]) -> None:
    entries = RunDirectory.open(trained[0]).journal.read()
    for generation in (0, 3, 4):
        shown = germline("export", trained[0], "--verify", "--generation", generation)
        assert shown.exit_code == 0
        assert shown.stdout.endswith(f"digest verified: {entries[generation].digest}\n")


def test_verify_of_a_generation_that_never_was_is_an_error(trained: tuple[Path, str]) -> None:
    shown = germline("export", trained[0], "--verify", "-g", 99)
    assert shown.exit_code == 2
    assert "generation 99 is not in" in shown.stderr


def test_what_cannot_be_exported_says_why(trained: tuple[Path, str], tmp_path: Path) -> None:
    shown = germline("export", trained[0], "--out", tmp_path / "model")
    assert shown.exit_code == 2
    assert "engine=toy has no Hugging Face format" in shown.stderr


def test_eval_agrees_with_the_score_at_the_end_of_the_run(
    trained: tuple[Path, str], tmp_path: Path
) -> None:
    last = RunDirectory.open(trained[0]).held_out()[-1].score
    shown = germline("eval", trained[0], "--limit", last.n, "--out", tmp_path / "c")
    assert shown.stdout.startswith(f"{last.metric} {last.mean:.3g} ± {last.standard_error:.3g} ")


def test_mistake_17_split_task_and_settings_of_eval_take_effect(
    trained: tuple[Path, str], tmp_path: Path
) -> None:
    def prompts(*words: str) -> list[str]:
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        shown = germline("eval", trained[0], "--limit", "3", "--out", out, *words)
        assert shown.exit_code == 0, shown.output
        return [json.loads(line)["prompt"] for line in out.read_text().splitlines()]

    usual = prompts()
    assert prompts("--split", "test") == usual
    assert prompts("--split", "train") != usual
    assert prompts("--task", "arithmetic") != usual
    assert prompts("task.split_seed=1") != usual


def test_mistake_17_every_option_of_generate_takes_effect(trained: tuple[Path, str]) -> None:
    def text(*words: str) -> str:
        shown = germline("generate", trained[0], "What is it?", *words)
        assert shown.exit_code == 0, shown.output
        return shown.stdout

    sampled = ("--temperature", "5")
    assert len(text("--max-new-tokens", "3")) == len("abc\n")
    assert text(*sampled) != text()
    assert text(*sampled, "--seed", "1") != text(*sampled)
    assert text(*sampled, "--top-p", "0.01") == text()
