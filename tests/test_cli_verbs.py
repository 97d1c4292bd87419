"""The verbs end to end, on the toy engine, and `report`."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from germline.config import load_config
from germline.record import Journal, RunDirectory
from tests.command_line import command
from tests.hang_limit import HANG_S, wait_until
from tests.toy_runs import journal, run

pytestmark = pytest.mark.usefixtures("graded_in_process")


CONFIG = """
task: conciseness
engine: toy
generations: 5
batch_size: 4
strategy: {population: 4, sigma: 0.3, learning_rate: 0.3}
held_out: {every: 2, examples: 4}
record: {snapshot_every: 2, tensorboard: false}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "toy.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def trained(config: Path) -> tuple[Path, str]:
    """A finished run, and what training printed."""
    run = config.parent / "run"
    shown = command("train", config, "--out", run)
    assert shown.exit_code == 0, shown.output
    return run, shown.stdout


def test_mistake_17_a_run_has_exactly_the_generations_asked_for(trained: tuple[Path, str]) -> None:
    run, printed = trained
    assert RunDirectory.open(run).journal.last_generation() == 4
    numbers = re.findall(r"^generation (\d) \((\d)/5\)", printed, re.MULTILINE)
    assert numbers == [(str(number), str(number + 1)) for number in range(5)]
    scores = RunDirectory.open(run).held_out()
    assert [one.score.generation for one in scores] == [0, 2, 4, 5]


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
    wait_until(lambda: Journal(run / "journal.jsonl").last_generation() >= 1)
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
    assert command("resume", run, f"generations={length}", "-q").exit_code == 0
    assert journal(run).splitlines()[:5] == journal(trained[0]).splitlines()


def test_mistake_17_split_task_and_settings_of_eval_take_effect(
    trained: tuple[Path, str], tmp_path: Path
) -> None:
    def prompts(*words: str) -> list[str]:
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        shown = command("eval", trained[0], "--limit", "3", "--out", out, *words)
        assert shown.exit_code == 0, shown.output
        return [json.loads(line)["prompt"] for line in out.read_text().splitlines()]

    usual = prompts()
    assert prompts("--split", "test") == usual
    assert prompts("--split", "train") != usual
    assert prompts("--task", "arithmetic") != usual
    assert prompts("task.split_seed=1") != usual


def test_mistake_17_every_option_of_generate_takes_effect(trained: tuple[Path, str]) -> None:
    def text(*words: str) -> str:
        shown = command("generate", trained[0], "What is it?", *words)
        assert shown.exit_code == 0, shown.output
        return shown.stdout

    sampled = ("--temperature", "5")
    assert len(text("--max-new-tokens", "3")) == len("abc\n")
    assert text(*sampled) != text()
    assert text(*sampled, "--seed", "1") != text(*sampled)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("finished") / "run")


def test_a_file_that_is_no_page_is_not_replaced(finished, tmp_path):
    kept = journal(finished)
    shown = command("report", finished, "--out", finished / "journal.jsonl")
    assert shown.exit_code == 2
    assert "name the file of the page" in shown.stderr
    assert journal(finished) == kept
    page = tmp_path / "page.html"
    page.touch()  # as `mktemp` makes it
    assert command("report", finished, "--out", page).exit_code == 0


def test_a_run_directory_stands_for_its_config(finished, tmp_path):
    config = RunDirectory.open(finished).config
    assert load_config(finished) == load_config(finished / "run.json") == config
    assert load_config(finished, ["seed=5"]).seed == 5
    again = tmp_path / "again"
    assert command("train", finished, "--out", again, "--quiet").exit_code == 0
    assert journal(again) == journal(finished)
