"""What commands print, as a whole: help, progress, results, tables, errors and a page."""

import io
import re
from dataclasses import replace

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from germline.cli import output, run_loop
from germline.cli.application import app
from germline.cli.run_loop import ProgressView
from germline.config import load_config
from germline.record import RunDirectory
from germline.report.html_page import write_report
from germline.types import Completion, SigmaTrial
from tests.snapshots import check_snapshot
from tests.synthetic_runs import BATCH, DIGEST, record, rollout, score
from tests.terminals import terminal
from tests.toy_runs import SETTINGS

pytestmark = pytest.mark.usefixtures("graded_in_process")

SMALL = SETTINGS | {"generations": 3}
RIDDLES = '{"prompt": "What is 3 + 4?", "answer": 7}\n{"prompt": "What is 5 + 4?", "answer": 9}\n'


@pytest.fixture(autouse=True)
def same_machine(monkeypatch):
    """A CPU with enough memory and a terminal of 80 columns, whatever this machine has."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("germline.estimates.machine.available_bytes", lambda: 64e9)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("GERMLINE_LOG_LEVEL", raising=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a config, and rows of a task."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "toy.yaml").write_text(yaml.safe_dump(SMALL))
    (folder / "rows.jsonl").write_text(RIDDLES * 4)
    return folder


@pytest.fixture
def shown(folder, monkeypatch):
    """Run command lines in the folder; return what they print, under each line."""
    monkeypatch.chdir(folder)

    def run(*lines):
        texts = []
        for line in lines:
            done = CliRunner().invoke(app, line.split(), catch_exceptions=False)
            error = f"[stderr]\n{done.stderr}" if done.stderr else ""
            status = f"[exit status {done.exit_code}]\n" if done.exit_code else ""
            texts.append(f"$ germline {line}\n{done.stdout}{error}{status}")
        return "\n".join(texts)

    return run


def made(folder, name="run"):
    """Make up a run that improved, with a failure, hostile text and a finding."""
    config = load_config({"task": "arithmetic", "generations": 4})
    run = RunDirectory.create(folder / name, config, DIGEST, threads=1)
    for updates, text in ((0, "The answer is 8."), (4, "8 \x1b[2J[/b]")):
        if updates:
            for generation in range(4):
                failing = "timeout after 2 s" if generation == 2 else None
                run.write(record(generation, failure=failing), BATCH, {"host": 500.0})
        one = replace(rollout(0, 7, updates / 4), completion=Completion(text, (1,), "eos", 1))
        run.write_held_out(score(updates, 0.25 + updates / 8), [one], BATCH)
    run.release_lock()
    return run


def test_help(shown):
    check_snapshot("help", shown("--help", "resume --help"))


def test_a_run_is_trained_finished_extended_and_used(shown, folder):
    lines = (
        "train toy.yaml --out runs/toy",
        "resume runs/toy --quiet",
        "resume runs/toy generations=4 --quiet",
        "resume runs/toy generations=5",
        "resume runs/toy --from 1 --out runs/fork --quiet",
        "export runs/toy --verify",
        "generate runs/toy one two --max-new-tokens 4",
        "eval runs/toy --limit 3",
        "eval runs/toy runs/fork -g -1 -g best --limit 3",
    )
    check_snapshot("train", shown(*lines), folder)


def test_several_seeds_are_trained_and_compared(shown, folder):
    lines = (
        "train toy.yaml seeds=0,1 generations=1 --out runs/two",
        "report runs/two",
        "train toy.yaml seeds=0,1 strategy.sigma=0.2 generations=1 --out runs/other --quiet",
        "report runs/two runs/other",
    )
    check_snapshot("seeds", shown(*lines), folder)


def test_runs_are_listed(shown, folder):
    made(folder, "listed/one")
    (folder / "listed/broken").mkdir()
    (folder / "listed/broken/run.json").write_text("{")
    lines = ("list runs listed", "list rewards", "list strategies")
    check_snapshot("list", shown(*lines), folder)


def test_a_task_is_written_and_checked(shown, folder):
    lines = (
        "new riddles",
        "new --model nano --task arithmetic",
        "check rows.jsonl task.reward=numeric",
        "check wordle",
    )
    check_snapshot("tasks", shown(*lines), folder)
    check_snapshot("config", (folder / "arithmetic-nano.yaml").read_text(), folder)


def test_a_dry_run(shown, folder):
    check_snapshot("dry_run", shown("train demo --dry-run --out runs/dry"), folder)


def test_errors_are_one_paragraph_with_what_was_found_and_what_to_do(shown, folder):
    made(folder, "errors/run")
    lines = (
        "train nowhere.yaml",
        "train demmo",
        "train toy.yaml strategy.sigm=1",
        "train toy.yaml --quiet False",
        "train task=sums.py model=nano",
        "train toy.yaml --generations 5",
        "train toy.yaml seeds=0..2 seed=1",
        "train toy.yaml --out errors/run",
        "resume errors/run strategy.sigma=1",
        "resume errors/run --out other",
        "eval nano",
        "eval nano --task arithmetic generations=3",
        "eval nano --split foo",
        "eval errors/run nano --out file",
        "eval errors/run -g last",
        "eval errors/run nano --kl",
        "generate errors/rum hello",
        "export errors/run",
        "report .",
        "list task",
        "new 3-men",
        "new --model nano",
        "check errors/nowhere.py",
        "serve nano strategy.sigma=1",
        "serve --reward model -g best",
        "serve nano -g newest",
        "serve nano -g 3",
        "serve errors/rum",
        "serve nano --host 0.0.0.0",
        "serve nano engine=toy --port 1 --host ::1.invalid",
    )
    check_snapshot("errors", shown(*lines), folder)


def test_the_progress_of_a_training_on_a_terminal(tmp_path):
    console = Console(width=100, record=True, force_terminal=True, file=io.StringIO())
    run = made(tmp_path)
    view = ProgressView(run, console)
    view.bar.get_time = lambda: 0.0
    view.trial(SigmaTrial(0.1, 0.0005))
    view.trial(SigmaTrial(0.2))
    view.generation(record(3, held_out=score(4)))
    console.print(view.bar)
    check_snapshot("progress", console.export_text(), tmp_path)


def test_the_time_left_is_that_of_the_generations_after_the_first(tmp_path):
    run = RunDirectory.create(tmp_path / "run", load_config({"generations": 10}), DIGEST, 1)
    now, view = [1000.0], ProgressView(run, Console(), quiet=True)
    view.bar.get_time = lambda: now[0]
    assert view.left == ""
    for generation in range(3):
        now[0] += 2.5 if generation else 100.0  # the first one has the start of the run
        view.generation(replace(record(generation), generations=10))
    assert view.left == "0:18 min left"


@pytest.mark.parametrize("width", [50, 120])
def test_the_end_of_a_training_on_a_terminal(tmp_path, width):
    run = made(tmp_path)
    run.figure.touch()
    columns = ("run", "done", "held-out", "meaning")
    rows = [("a/long/path/of/a/run", "40/40", "21 -> 0.1", "a sentence of several words")]
    with terminal(width) as screen:
        run_loop.print_result(run, quiet=False)
        output.print_table(columns, rows)
    check_snapshot(f"end_{width}", screen.getvalue(), tmp_path)


def test_the_words_of_a_page(tmp_path):
    html = write_report(made(tmp_path).path).read_text()
    body = re.sub(r"<svg.*?</svg>|<head>.*?</head>", "", html, flags=re.DOTALL)
    body = body[: body.index('<h2 id="run-0-provenance"')]
    words = re.sub(r"\s*\n\s*", "\n", re.sub(r"<[^>]*>", " ", body))
    check_snapshot("page", words, tmp_path)
