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
from germline.report.next_commands import next_commands
from germline.run import replay
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


def test_training_ends_with_scores_paths_and_next_commands(trained: tuple[Path, str]) -> None:
    run, printed = trained
    assert "held-out prompts, before and after training" in printed
    assert re.search(r"held-out \w+: [\d.,]+ ± [\d.,]+ -> ", printed)
    for line in (f"run directory: {run}", f"figure:        {run / 'evolution.png'}"):
        assert f"\n{line}\n" in printed
    for command in next_commands(RunDirectory.open(run)):
        assert f"\n  {command}\n" in printed


def test_mistake_17_quiet_prints_the_final_lines_only(config: Path, tmp_path: Path) -> None:
    shown = germline("train", config, "generations=1", "--out", tmp_path / "run", "--quiet")
    assert shown.exit_code == 0
    run = RunDirectory.open(tmp_path / "run")
    begins = [line.split(":")[0] for line in shown.stdout.splitlines()]
    assert [one for one in begins if one not in ("warning", "note")] == [
        f"held-out {run.held_out()[0].score.metric}",
        "run directory",
        "figure",
        "report",
    ]


def test_mistake_17_an_override_reaches_the_run(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("generations=2", "strategy.sigma=2e-1", "seed=5", "space=full")
    assert germline("train", config, *words, "--out", run, "-q").exit_code == 0
    update = RunDirectory.open(run).journal.read()[-1].update
    assert isinstance(update, Update)
    assert (update.generation, update.sigma, update.run_seed) == (1, 0.2, 5)
    assert RunDirectory.open(run).config.space.kind == "full"


def test_a_taken_folder_is_refused(config: Path, trained: tuple[Path, str]) -> None:
    before = journal(trained[0])
    shown = germline("train", config, "--out", trained[0])
    assert shown.exit_code == 2
    assert f"germline resume {trained[0]}" in shown.stderr
    assert journal(trained[0]) == before


def test_a_run_in_two_parts_has_the_journal_of_one(
    config: Path, trained: tuple[Path, str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert germline("train", config, "generations=3", "--out", run, "-q").exit_code == 0
    shown = germline("resume", run, "generations=5", "--quiet")
    assert shown.exit_code == 0
    assert journal(run) == journal(trained[0])


def test_resume_says_from_where_it_continues_or_that_nothing_is_left(
    config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert germline("train", config, "generations=1", "--out", run, "-q").exit_code == 0
    assert "Continuing after 1 of 2 generations." in germline("resume", run, "generations=2").stdout
    shown = germline("resume", run).stdout
    assert "This run is finished (2 of 2 generations): nothing is trained." in shown
    assert f"germline resume {run} generations=4" in shown


def test_a_toy_run_is_not_sent_to_export_which_has_no_format_for_it(
    trained: tuple[Path, str],
) -> None:
    assert f"germline report {trained[0]}" in trained[1]
    assert "germline export" not in trained[1]


def test_resume_refuses_what_would_make_it_another_run(trained: tuple[Path, str]) -> None:
    shown = germline("resume", trained[0], "strategy.sigma=1")
    assert shown.exit_code == 2
    assert "strategy.sigma cannot change within a run" in shown.stderr
    assert "asked for is 1.0" in shown.stderr


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


def test_verify_rebuilds_the_newest_generation_by_default(trained: tuple[Path, str]) -> None:
    (*_, last) = RunDirectory.open(trained[0]).journal.read()
    shown = germline("export", trained[0], "--verify")
    assert shown.stdout == f"generation 4 rebuilt, digest verified: {last.digest}\n"
    assert replay(trained[0]) == last.digest


def test_verify_of_a_generation_that_never_was_is_an_error(trained: tuple[Path, str]) -> None:
    shown = germline("export", trained[0], "--verify", "-g", 99)
    assert shown.exit_code == 2
    assert "generation 99 is not in the journal" in shown.stderr


def test_what_cannot_be_exported_says_why(trained: tuple[Path, str], tmp_path: Path) -> None:
    shown = germline("export", trained[0], "--out", tmp_path / "model")
    assert shown.exit_code == 2
    assert "engine=toy has no Hugging Face format" in shown.stderr


def test_eval_prints_the_score_and_writes_the_completions(
    trained: tuple[Path, str], tmp_path: Path
) -> None:
    out = tmp_path / "completions.jsonl"
    shown = germline("eval", trained[0], "--limit", 3, "--out", out)
    assert shown.exit_code == 0
    assert re.match(r"\w+ [\d.]+ ± [\d.]+ \(mean and standard error, n 3\), mean", shown.stdout)
    assert shown.stdout.endswith(f"completions: {out}\n")
    assert len(out.read_text().splitlines()) == 3


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


def test_generate_answers_each_prompt_under_its_own_heading(trained: tuple[Path, str]) -> None:
    shown = germline("generate", trained[0], "one", "two", "--max-new-tokens", 2)
    assert [line for line in shown.stdout.splitlines() if line.startswith("> ")] == [
        "> one",
        "> two",
    ]
