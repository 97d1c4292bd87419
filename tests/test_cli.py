"""The command line: help, errors for people, flags that take effect, and what a terminal sees."""

import io
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from germline.cli import text_format
from germline.cli.application import app
from germline.cli.interrupt import stop_on_interrupt
from germline.cli.train_summary import (
    completions_table,
    print_result,
    print_stopped,
)
from germline.config import load_config
from germline.record import RunDirectory
from tests.synthetic_runs import BATCH, DIGEST, record, rollout, score

VERBS = ("train", "resume", "export", "eval", "generate", "serve")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", load_config({"generations": 10}), DIGEST, 1)


def terminal(width: int = 90) -> Console:
    return Console(width=width, force_terminal=True, record=True, file=io.StringIO())


# --- help and errors


def test_help_names_every_verb() -> None:
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    assert all(f"\n  {verb} " in shown.output for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_shows_examples(verb: str) -> None:
    shown = CliRunner().invoke(app, [verb, "--help"])
    assert shown.exit_code == 0
    assert f"\n    germline {verb} " in shown.output
    assert CliRunner().invoke(app, [verb, "-h"]).output == shown.output


def test_help_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys\n"
        "from germline.cli.application import app\n"
        "heavy = {'torch', 'numpy', 'transformers', 'matplotlib', 'pydantic'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    assert done.stdout.strip() == "[]"


def test_a_missing_config_is_told_in_one_paragraph() -> None:
    shown = CliRunner().invoke(app, ["train", "nowhere.yaml"])
    assert shown.exit_code == 2
    assert shown.stderr == (
        "germline: config: there is no file 'nowhere.yaml'; `germline list configs` shows those "
        "that come with germline\n"
    )
    assert shown.stdout == ""


def test_a_mistyped_setting_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("task: arithmetic\n")
    shown = CliRunner().invoke(app, ["train", str(tmp_path / "c.yaml"), "strategy.sigm=1"])
    assert shown.exit_code == 2
    assert "strategy.sigm: unknown setting (did you mean 'sigma'?)" in shown.stderr


def test_mistake_17_a_flag_takes_no_word_that_would_be_ignored(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("task: arithmetic\n")
    shown = CliRunner().invoke(app, ["train", str(tmp_path / "c.yaml"), "--quiet", "False"])
    assert shown.exit_code == 2
    assert "override 'False' must look like strategy.sigma=0.002" in shown.stderr


@pytest.mark.parametrize("setting", ["strategy.sigma=1", "generations=3", "held_out.examples=5"])
def test_mistake_17_eval_refuses_settings_that_it_would_ignore(setting: str) -> None:
    shown = CliRunner().invoke(app, ["eval", "nano", "--task", "arithmetic", setting])
    assert shown.exit_code == 2
    assert f"{setting} has no effect here" in shown.stderr


def test_evaluating_a_model_needs_a_task() -> None:
    shown = CliRunner().invoke(app, ["eval", "nano"])
    assert shown.exit_code == 2
    assert "nano is not a run directory, so a task is needed: --task countdown" in shown.stderr
    assert "there is no folder 'nano' here" in shown.stderr


def test_a_setting_in_place_of_the_config_is_called_one() -> None:
    shown = CliRunner().invoke(app, ["train", "task=sums.py", "model=nano"])
    assert shown.exit_code == 2
    assert "'task=sums.py' is a setting; name a config before the settings" in shown.stderr


def test_a_mistyped_option_ends_with_status_2() -> None:
    assert CliRunner().invoke(app, ["train", "c.yaml", "--quite"]).exit_code == 2


# --- Ctrl-C


def test_the_first_interrupt_asks_to_stop_and_the_second_stops() -> None:
    asked = []
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt(lambda: asked.append(1)):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert asked == [1]


def test_a_scheduler_s_request_to_end_asks_to_stop() -> None:
    asked = []
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_interrupt(lambda: asked.append(1)):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
    assert asked == [1]


def test_stopping_says_how_to_resume(run: RunDirectory) -> None:
    console = terminal()
    print_stopped(console, run)
    run.write(record(0), BATCH)
    print_stopped(console, run)
    lines = console.export_text().replace("with:\n", "with: ").splitlines()
    assert lines == [
        f"Stopped before the first generation. Resume with: germline resume {run.path}",
        f"Stopped after generation 0 (1 of 10 done). Resume with: germline resume {run.path}",
    ]


# --- at the end


def test_the_summary_shows_before_and_after(run: RunDirectory) -> None:
    run.write_held_out(score(0, 0.25), [rollout(0, 7, 0.0)], BATCH)
    run.write_held_out(score(10, 0.75), [rollout(5, 7, 1.0)], BATCH)
    console = terminal(140)
    print_result(console, run, quiet=False)
    shown = console.export_text()
    assert "│ question 7? │ answer 7    │ says 0 │ says 5 │" in shown
    assert "held-out exact: 0.25 ± 0.05 -> 0.75 ± 0.05 (mean and standard error, n 100)" in shown
    assert f"run directory: {run.path}" in shown


def test_the_figure_is_named_only_when_there_is_one(run: RunDirectory) -> None:
    console = terminal()
    print_result(console, run, quiet=True)
    assert "figure:" not in console.export_text()
    run.figure.touch()
    print_result(console, run, quiet=True)
    assert f"figure:        {run.figure}" in console.export_text()


# --- wording


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12345, "0.123"), (-12.34, "-12.3"), (12345.6, "12,346"), (None, "-"), (math.nan, "-")],
)
def test_numbers_have_about_three_digits(value: float | None, text: str) -> None:
    assert text_format.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.2, "0:00 min"), (59.6, "1:00 min"), (75.0, "1:15 min"), (3661.0, "1:01:01 h")),
        *((172_799.0, "47:59:59 h"), (216_000.0, "2.5 days"), (17_702.9 * 3600, "2.02 years")),
        *((8760.0 * 3600, "365 days"), (1e12, "31,710 years")),
    ],
)
def test_durations_read_as_on_a_clock(seconds: float, text: str) -> None:
    assert text_format.duration(seconds) == text


def test_model_text_cannot_command_the_terminal() -> None:
    hostile = "\x1b[2J\x1b]0;title\x07\x9b31m\u202eevil"
    shown = text_format.escape_control_characters(hostile)
    assert shown == "�[2J�]0;title��31m�evil"


def test_markup_in_model_text_is_shown_as_written(run: RunDirectory) -> None:
    run.write_held_out(score(0), [rollout(0, 7, 0.0)], BATCH)
    held_out = run.held_out()[0]
    sample = type(held_out.samples[0])("[bold]p[/bold]", "[/]c", "a", 1.0)
    one = type(held_out)(held_out.score, (sample,))
    console = terminal()
    console.print(completions_table(one, one, 90))
    assert "[bold]p[/bold]" in console.export_text()


def test_an_excerpt_is_one_line_of_limited_width() -> None:
    assert text_format.one_line_excerpt("one\ntwo\r\nthree", 80) == "one⏎two⏎three"
    assert text_format.one_line_excerpt("x" * 100, 10) == "x" * 9 + "…"


def test_a_sparkline_rises_with_its_values() -> None:
    assert text_format.sparkline([float(one) for one in range(8)], 20) == "▁▂▃▄▅▆▇█"
    assert text_format.sparkline([1.0, None, 1.0], 20) == "▁▁"
    assert text_format.sparkline([float(one) for one in range(1000)], 4) == "▁▃▆█"
    assert text_format.sparkline([], 20) == ""


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (("train", "demo", "--generations", "5"), "generations=5"),
        (("probe", "demo", "--batch-size=8"), "batch_size=8"),
        (("eval", "nano", "--task.max_new_tokens", "--json"), "task.max_new_tokens=VALUE"),
    ],
)
def test_a_setting_given_as_an_option_is_answered_with_its_spelling(words, written):
    shown = CliRunner().invoke(app, list(words))
    assert shown.exit_code == 2
    assert f"Settings are written without dashes: {written}" in " ".join(shown.output.split())


def test_an_unknown_option_that_is_no_setting_gets_no_such_advice():
    shown = CliRunner().invoke(app, ["train", "demo", "--no-such-option"])
    assert shown.exit_code == 2
    assert "without dashes" not in shown.output
