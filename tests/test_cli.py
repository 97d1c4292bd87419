"""The command line: what it imports, Ctrl-C, log levels, messages on a terminal, and `doctor`."""

import io
import json
import logging
import signal
import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import pytest
from rich.console import Console
from rich.file_proxy import FileProxy

from germline.cli import doctor, main, output
from germline.cli.application import set_log_level
from germline.cli.doctor import InstallationCheck
from germline.cli.output import INTERRUPTED, print_stderr, wrap_words
from germline.cli.run_loop import stop_on_interrupt
from tests.command_line import command
from tests.terminals import Screen, terminal


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


@pytest.mark.parametrize("width", range(14, 40))
def test_no_heading_and_no_cell_of_a_table_is_cut(width):
    columns, row = ("sigma", "examples differ", "meaning"), ("0.001", "50%", "recommended")
    with terminal(width) as screen:
        output.print_table(columns, [row])
    text = " ".join(screen.getvalue().split())
    assert "examples differ" in text
    assert "recommended" in text


def test_a_message_appears_above_a_live_view(monkeypatch):
    screen, behind = io.StringIO(), io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stderr", FileProxy(Console(file=screen, width=80), behind))
    print_stderr("a warning")
    assert screen.getvalue() == "a warning\n"


def test_a_message_is_wrapped_for_a_terminal(monkeypatch):
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "40")
    print_stderr("word " * 20)
    assert max(map(len, screen.getvalue().splitlines())) in range(30, 50)


@pytest.mark.parametrize(
    ("level", "shown"), [("debug", ["first", "second"]), ("warning", ["second"]), ("error", [])]
)
def test_the_level_says_which_messages_are_shown_in_a_line_each(level, shown, capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger("germline"), "level", logging.NOTSET)
    set_log_level(level)
    for number, message in ((logging.INFO, "first"), (logging.WARNING, "second")):
        logging.getLogger("germline.any").log(number, "%s%s", "word " * 40, message)
    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == shown


def test_what_is_said_of_a_model_that_is_loaded_again_is_said_once(capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger("germline"), "level", logging.NOTSET)
    set_log_level("warning")
    for name in ("engines.pretrained", "engines.pretrained", "run.model_prompts", "fleet", "fleet"):
        logging.getLogger(f"germline.{name}").warning("%s", name)
    assert capsys.readouterr().err.split() == [
        *("engines.pretrained", "run.model_prompts"),
        *("fleet", "fleet"),  # lost twice
    ]


def test_an_interrupt_while_modules_are_imported_is_no_traceback(capsys, monkeypatch):
    class Application(types.ModuleType):
        @property
        def app(self):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "germline.cli.application", Application("application"))
    with pytest.raises(SystemExit) as end:
        main()
    assert (end.value.code, capsys.readouterr().err) == (INTERRUPTED, "Interrupted.\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
@pytest.mark.parametrize("words", [("--help",), ("list", "tasks", "--json")])
def test_a_full_disk_under_stdout_is_one_sentence(words):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "germline", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "germline: standard output cannot be written: No space left on device\n"


# --- `germline doctor`


def examined(monkeypatch, *checks):
    monkeypatch.setattr(doctor, "CHECKS", {"self check": checks})
    done = command("doctor", "--json")
    return done.exit_code, json.loads(done.output)["self check"]


def test_nothing_is_broken_here_and_everything_is_looked_at():
    done = command("doctor", "--json")
    assert done.exit_code == 0
    document = json.loads(done.output)
    rows = [row for rows in document.values() if rows is not True for row in rows]
    assert [row for row in rows if row["state"] == "broken"] == []
    assert [row for row in rows if row["state"] != "ok" and not row["remedy"]] == []
    names = {
        title: {row["name"] for row in rows} for title, rows in document.items() if rows is not True
    }
    assert names["versions"] >= {"python", "germline", "torch", "numpy", "peft (peft)"}
    assert not names["versions"] & {"pytest", "mkdocs-material"}
    assert names["devices"] >= {"processor", "memory"}
    assert names["self check"] == {"noise", "nano model", "generation", "update", "graders"}
    assert "disk" in names["environment"]


def test_other_bits_end_with_status_1(monkeypatch):
    monkeypatch.setattr(doctor, "NOISE_DIGEST", "0" * 64)
    monkeypatch.setattr(doctor, "CHECKS", {"self check": (doctor.check_noise,)})
    shown = command("doctor")
    assert shown.exit_code == 1
    assert "broken\tnoise\t" in shown.output


def test_a_missing_package_comes_with_the_command_that_installs_it(monkeypatch):
    required = ["no-such-package>=2", "no-such-extra>=3; extra == 'ray'", "no-such; extra == 'dev'"]
    monkeypatch.setattr(metadata, "requires", lambda _: required)
    status, rows = examined(monkeypatch, doctor.check_versions)
    assert status == 1
    found = [(row["name"], row["state"], row["remedy"]) for row in rows[2:]]
    assert found == [
        ("no-such-package", "broken", "pip install 'no-such-package>=2'"),
        ("no-such-extra (ray)", "note", "pip install 'germline[ray]'"),
    ]


def test_a_check_that_fails_is_a_row(monkeypatch):
    def check_everything():
        yield InstallationCheck("first", "fine")
        raise OSError("no smoke without it")

    status, (first, second) = examined(monkeypatch, check_everything)
    assert (status, first["state"], second["name"]) == (1, "ok", "everything")
    assert (second["state"], second["value"]) == ("broken", "OSError: no smoke without it")


def test_an_installation_without_torch_can_be_examined():
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['germline', 'doctor']\n"
        "from germline.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "broken\tdevices" in done.stdout
    assert "ok\tnoise" in done.stdout
