"""The command line: what it imports, Ctrl-C, log levels, messages on a terminal, and `doctor`."""

import io
import json
import logging
import signal
import sys
import types
from importlib import metadata
from pathlib import Path

import pytest
from rich.console import Console
from rich.file_proxy import FileProxy

from germline import registry
from germline.cli import inventory, main
from germline.cli.application import set_log_level
from germline.cli.inventory import InstallationCheck
from germline.cli.output import INTERRUPTED, print_stderr
from germline.cli.run_loop import stop_on_interrupt
from germline.config import load_config
from germline.config.config_files import config_summary, find_config, preset_configs
from germline.types import GermlineError
from tests.command_line import command

ROOT = Path(__file__).parents[1]


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


def test_an_interrupt_while_modules_are_imported_is_no_traceback(capsys, monkeypatch):
    class Application(types.ModuleType):
        @property
        def app(self):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "germline.cli.application", Application("application"))
    with pytest.raises(SystemExit) as end:
        main()
    assert (end.value.code, capsys.readouterr().err) == (INTERRUPTED, "Interrupted.\n")


def test_a_setting_of_a_file_that_an_override_makes_void_can_be_reset():
    words = ("train", "arithmetic", "method=grpo", "--dry-run")
    assert "strategy.population=128 would be ignored" in (refused := command(*words).stderr)
    assert command(*words, refused.split()[-1]).exit_code == 0


def test_a_wrong_option_of_the_evaluations_of_a_study_is_refused_before_its_training(tmp_path):
    done = command("compare", "nano_es_vs_rl", "eval=['--samples x']", "--out", tmp_path / "study")
    assert (done.exit_code, "'--samples'" in done.stderr) == (2, True)
    assert not (tmp_path / "study").exists()


# --- `germline doctor`


def examined(monkeypatch, *checks):
    monkeypatch.setattr(inventory, "CHECKS", checks)
    done = command("doctor", "--json")
    return done.exit_code, json.loads(done.output)["checks"]


def test_nothing_is_broken_here_and_everything_is_looked_at():
    done = command("doctor", "--json")
    assert done.exit_code == 0
    rows = json.loads(done.output)["checks"]
    assert [row for row in rows if row["state"] == "broken"] == []
    assert [row for row in rows if row["state"] != "ok" and not row["remedy"]] == []
    names = {row["name"] for row in rows}
    assert names >= {"python", "germline", "torch", "numpy", "peft (peft)", "processor", "memory"}
    assert names >= {"noise", "nano model", "generation", "update", "graders"}
    assert not names & {"pytest", "mkdocs-material"}


def test_other_bits_end_with_status_1(monkeypatch):
    monkeypatch.setattr(inventory, "NOISE_DIGEST", "0" * 64)
    monkeypatch.setattr(inventory, "CHECKS", (inventory.check_noise,))
    shown = command("doctor")
    assert shown.exit_code == 1
    assert "broken\tnoise\t" in shown.output


def test_a_missing_package_comes_with_the_command_that_installs_it(monkeypatch):
    required = ["no-such-package>=2", "no-such-extra>=3; extra == 'ray'", "no-such; extra == 'dev'"]
    monkeypatch.setattr(metadata, "requires", lambda _: required)
    status, rows = examined(monkeypatch, inventory.check_versions)
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


# --- `germline list`


def rows(what, *words):
    shown = command("list", what, *words)
    assert shown.exit_code == 0, shown.output
    cells = [line.split("\t") for line in shown.stdout.splitlines()]
    return {first: rest for first, *rest in cells}


@pytest.mark.parametrize(
    ("what", "section"),
    [("tasks", "task"), ("spaces", "space"), ("engines", "engine"), ("methods", "method")],
)
def test_every_kind_is_listed_with_a_line_of_meaning(what, section):
    found = rows(what)
    assert found.keys() == registry.sections(section).keys()
    assert all(len(meaning) > 10 for (meaning,) in found.values())


def test_settings_are_listed_with_default_and_meaning():
    shown = rows("settings")
    assert shown["sweep.sampler"] == [
        "tpe",
        "What proposes trials. [tpe or random or grid or cmaes or gp]",
    ]
    assert shown["held_out.examples"] == ["100", "Held-out examples per score. [integer ≥ 1]"]
    assert shown["held_out.scorers.NAME.max_new_tokens"][0] == "512"


# --- shipped configs


def test_every_config_says_in_its_first_line_what_it_is_for():
    assert preset_configs().keys() >= {"demo", "arithmetic"}
    assert all(config_summary(path) for path in preset_configs().values())
    assert rows("configs").keys() == preset_configs().keys()


def test_a_shipped_config_goes_by_name_and_a_file_of_ones_own_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    by_name, by_path = load_config("demo"), load_config("configs/demo.yaml")
    assert by_name == by_path == load_config(ROOT / "configs" / "demo.yaml")
    Path("demo").write_text("seed: 7\n")
    assert find_config(Path("demo")) == Path("demo")
    assert load_config("demo").seed == 7
    Path("sums.yaml").touch()
    with pytest.raises(GermlineError, match=r"no file 'sums.yml' \(did you mean 'sums.yaml'"):
        load_config("sums.yml")
