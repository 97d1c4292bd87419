"""The command line: help, errors for people, Ctrl-C, log levels and messages on a terminal."""

import io
import logging
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from rich.console import Console
from rich.file_proxy import FileProxy
from typer.testing import CliRunner

from germline.cli import output
from germline.cli.application import app, set_log_level
from germline.cli.output import print_stderr, wrap_words
from germline.cli.run_loop import print_state, stop_on_interrupt
from germline.config import load_config
from germline.record import RunDirectory
from tests.synthetic_runs import BATCH, DIGEST, record
from tests.toy_runs import settings


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))


@pytest.mark.parametrize("words", [*commands(typer.main.get_command(app))], ids=" ".join)
def test_the_help_of_every_command_fits_80_columns_and_shows_examples(words):
    shown = CliRunner().invoke(app, [*words, "--help"])
    assert shown.exit_code == 0
    assert [line for line in shown.output.splitlines() if len(line) > 80] == []
    assert "\n    germline " in shown.output
    assert CliRunner().invoke(app, [*words, "-h"]).output == shown.output


def test_there_are_few_commands_and_options():
    everything = [*typer.main.get_command(app).commands.values()]  # type: ignore[attr-defined]
    options = [one for c in everything for one in c.params if one.param_type_name == "option"]
    assert len(everything) <= 13
    assert len(options) <= 70


def test_help_imports_neither_torch_nor_numpy():
    code = (
        "import sys\n"
        "from germline.cli.application import app\n"
        "heavy = {'torch', 'numpy', 'transformers', 'matplotlib', 'pydantic', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_to_stop_and_a_second_ctrl_c_stops(name):
    asked = []
    before = signal.getsignal(name)
    with stop_on_interrupt(lambda: asked.append(1)):
        signal.raise_signal(name)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(name) is before
    assert asked == [1]


def test_stopping_says_how_to_resume(tmp_path):
    run = RunDirectory.create(tmp_path / "run", load_config({"generations": 10}), DIGEST, 1)
    console = Console(width=90, force_terminal=True, record=True, file=io.StringIO())
    print_state(console, run)
    run.write(record(0), BATCH)
    print_state(console, run)
    command = f"germline resume {run.path}"  # is not broken
    lines = [line for line in console.export_text().splitlines() if line != command]
    assert lines == [
        "Stopped before the first generation. Resume with:",
        "Stopped after generation 0 (1 of 10 done). Resume with:",
    ]


# --- messages


MESSAGES = {
    "the message of a setting strategy.population=4 in /a/long/path/of/some/run-directory ends": [
        "strategy.population=4",
        "/a/long/path/of/some/run-directory",
    ],
    "use `germline eval RUN --kl` or `pip install 'germline[ray]'`, which installs it": [
        "`germline eval RUN --kl`",
        "`pip install 'germline[ray]'`,",
    ],
    "set a number (germline resume RUN held_out.patience=null), an unbalanced ` stays": [
        "(germline resume RUN held_out.patience=null),"
    ],
    "Stopped after 3 generations. Resume with: germline resume 'runs/my run' --quiet": [
        "germline resume 'runs/my run' --quiet"
    ],
}


@pytest.mark.parametrize("width", [20, 40, 80])
@pytest.mark.parametrize(("message", "whole"), MESSAGES.items(), ids=range(len(MESSAGES)))
def test_words_commands_and_settings_stay_whole(message, whole, width):
    lines = wrap_words(message, width).split("\n")
    assert " ".join(lines) == message
    assert all(any(text in line for line in lines) for text in whole)
    assert all(len(line) <= width or any(text in line for text in whole) for line in lines)


def on_terminal(columns, *words, stream="stdout"):
    """Run a command of which a stream is a terminal so wide; return the lines it prints there."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "xterm"}
    command = [sys.executable, "-m", "germline", *words]
    out, err = (theirs if name == stream else subprocess.PIPE for name in ("stdout", "stderr"))
    subprocess.run(command, stdout=out, stderr=err, env=environment, check=False)
    os.close(theirs)
    text = os.read(ours, 1 << 16).decode()
    os.close(ours)
    return re.sub(r"\x1b\[\d+m", "", text).splitlines()


@pytest.mark.parametrize(
    ("words", "stream", "text"),
    [
        (("train", "arithmetic", "learning_rate=1"), "stderr", "learning_rate"),
        (("doctor",), "stdout", "nano model"),
        (("probe", "toy.yaml", "--out", "probe"), "stdout", "degenerate texts, KL 0 nats"),
        (("eval", "nano", "nano", "--task", "arithmetic", "--limit", "2"), "stdout", "difference"),
    ],
    ids=str,
)
def test_a_narrow_terminal_breaks_lines_between_words(tmp_path, monkeypatch, words, stream, text):
    monkeypatch.chdir(tmp_path)
    Path("toy.yaml").write_text(settings("generations=2").model_dump_json())
    lines = on_terminal(40, *words, stream=stream)
    assert all(len(one) <= 40 or " " not in one.strip() for one in lines if "germline" not in one)
    assert text in " ".join(line.strip() for line in lines)


@pytest.mark.parametrize("width", range(14, 40))
def test_no_heading_and_no_cell_of_a_table_is_cut(width):
    console = Console(width=width, force_terminal=True, color_system=None, file=io.StringIO())
    columns, row = ("sigma", "examples differ", "meaning"), ("0.001", "50%", "recommended")
    output.print_table(columns, [row], console)
    text = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert "examples differ" in text
    assert "recommended" in text


def test_a_message_appears_above_a_live_view(monkeypatch):
    screen, behind = io.StringIO(), io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stderr", FileProxy(Console(file=screen, width=80), behind))
    print_stderr("a warning")
    assert screen.getvalue() == "a warning\n"


@pytest.mark.parametrize(
    ("level", "shown"), [("debug", ["first", "second"]), ("warning", ["second"]), ("error", [])]
)
def test_the_level_says_which_messages_are_shown_in_a_line_each(level, shown, capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger("germline"), "level", logging.NOTSET)
    set_log_level(level)
    for number, message in ((logging.INFO, "first"), (logging.WARNING, "second")):
        logging.getLogger("germline.any").log(number, "%s%s", "word " * 40, message)
    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == shown
