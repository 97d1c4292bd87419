"""Messages on a terminal break between words; commands, paths and settings stay whole."""

import io
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.file_proxy import FileProxy
from typer.main import get_group

from germline.cli.application import app, set_log_level
from germline.cli.word_wrap import COMMANDS, print_stderr, wrap_words
from tests.test_seed_difference import train
from tests.toy_runs import settings

MESSAGES = {
    "the message of a setting strategy.population=4 in /a/long/path/of/some/run-directory ends": [
        "strategy.population=4",
        "/a/long/path/of/some/run-directory",
    ],
    "use `germline eval RUN --kl` or `pip install 'germline[ray]'`, which installs it": [
        "`germline eval RUN --kl`",
        "`pip install 'germline[ray]'`,",
    ],
    "to go on, set a larger number (germline resume RUN held_out.patience=null) here": [
        "(germline resume RUN held_out.patience=null)"
    ],
    "Stopped after 3 generations. Resume with: germline resume 'runs/my run' --quiet": [
        "germline resume 'runs/my run' --quiet"
    ],
    "difference to the first +0.153 [+0.0794, +0.226], with 95 % intervals [an open one": [
        "[+0.0794, +0.226],",
        "95 %",
    ],
    "an unbalanced ` does not lose a word of a message that is rather long": ["`"],
}


def test_every_command_is_known_and_stays_whole():
    assert set(COMMANDS.split("|")) == set(get_group(app).commands)


@pytest.mark.parametrize("width", [20, 40, 80])
@pytest.mark.parametrize(("message", "whole"), MESSAGES.items(), ids=range(len(MESSAGES)))
def test_words_commands_and_settings_stay_whole(message, whole, width):
    lines = wrap_words(message, width).split("\n")
    assert " ".join(lines) == message
    assert all(any(text in line for line in lines) for text in whole)
    assert all(len(line) <= width or any(text in line for text in whole) for line in lines)


def test_lines_that_fit_and_indents_are_kept():
    text = "a list:\n  - one  column\n  - an item that is longer than the terminal"
    assert wrap_words(text, 24).split("\n") == [
        *("a list:", "  - one  column", "  - an item that is", "  longer than the", "  terminal")
    ]


def on_terminal(columns, *words, stream="stderr"):
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


@pytest.mark.parametrize("columns", [40, 80])
def test_an_error_on_a_terminal_is_wrapped(columns):
    lines = on_terminal(columns, "train", "arithmetic", "learning_rate=1")
    assert len(lines) > 1
    assert all(len(line) <= columns for line in lines)
    assert "learning_rate" in " ".join(lines)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two configs with two run seeds each."""
    folder = tmp_path_factory.mktemp("r")
    return [
        train(folder / name, {0: end, 1: end + 0.1}, size)
        for name, end, size in (("a", 0.3, 2), ("b", 0.7, 3))
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("report", "RUNS", "--out", "p.html"), "2 seeds do not decide: b minus a is"),
        (("report", "a/seed-0", "b/seed-1", "--out", "p.html"), "(of examples, not of run seeds)"),
        (("list", "runs", "."), "held-out 0.1 -> 0.75"),
        (("doctor",), "self check"),
        (("probe", "toy.yaml", "--out", "probe"), "% degenerate texts, KL 0 nats per token"),
        (("eval", "nano", "nano", "--task", "arithmetic", "--limit", "2"), "difference to the"),
    ],
    ids=str,
)
def test_results_on_a_narrow_terminal_break_between_words(compared, monkeypatch, words, said):
    monkeypatch.chdir(compared[0].parent)
    Path("toy.yaml").write_text(settings("generations=2").model_dump_json())
    given = [one for word in words for one in (("a", "b") if word == "RUNS" else (word,))]
    lines = on_terminal(40, *given, stream="stdout")
    broken = [line for line in lines if not line.strip().startswith("germline train")]
    assert all(len(line) <= 40 or " " not in line.strip() for line in broken)
    assert said in " ".join(line.strip() for line in lines)


@pytest.mark.parametrize(("columns", "same_line"), [(400, True), (30, False)])
def test_a_check_stands_in_one_line_where_the_terminal_has_room(columns, same_line):
    lines = on_terminal(columns, "doctor", stream="stdout")
    (first,) = [line.split() for line in lines if line.split()[1:2] == ["torch"]]
    assert (len(first) > 2) == same_line


def test_an_error_in_a_pipe_is_one_line(capsys):
    set_log_level("warning")
    message = "a warning " * 20
    logging.getLogger("germline.run").warning(message)
    assert capsys.readouterr().err == f"{message}\n"


def test_a_message_appears_above_a_live_view(monkeypatch):
    screen, behind = io.StringIO(), io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stderr", FileProxy(Console(file=screen, width=80), behind))
    print_stderr("a warning")
    assert screen.getvalue() == "a warning\n"
