"""What the command line says about itself: lists, versions and words for the shell's Tab key."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from germline import registry
from germline.cli.shell_completion import (
    complete_configs,
    complete_models,
    complete_runs,
    complete_settings,
)
from germline.config import load_config
from germline.config.config_files import config_summary, find_config, preset_configs
from germline.record import RunDirectory
from germline.types import GermlineError
from tests.command_line import command
from tests.synthetic_runs import DIGEST

ROOT = Path(__file__).parents[1]


def rows(what: str, *words: object) -> dict[str, list[str]]:
    shown = command("list", what, *words)
    assert shown.exit_code == 0, shown.output
    cells = [line.split("\t") for line in shown.stdout.splitlines()]
    return {first: rest for first, *rest in cells}


# --- list


@pytest.mark.parametrize(
    ("what", "section"),
    [("tasks", "task"), ("spaces", "space"), ("engines", "engine"), ("methods", "method")],
)
def test_every_kind_is_listed_with_a_line_of_meaning(what: str, section: str) -> None:
    found = rows(what)
    assert found.keys() == registry.sections(section).keys()
    assert all(len(meaning) > 10 for (meaning,) in found.values())


def test_settings_are_listed_with_default_and_meaning() -> None:
    shown = rows("settings")
    assert shown["held_out.examples"] == ["100", "Held-out examples per score. [integer ≥ 1]"]
    assert shown["held_out.scorers.NAME.max_new_tokens"][0] == "512"


# --- shipped configs


def test_every_config_says_in_its_first_line_what_it_is_for() -> None:
    assert preset_configs().keys() >= {"demo", "arithmetic"}
    assert all(config_summary(path) for path in preset_configs().values())
    assert rows("configs").keys() == preset_configs().keys()


def test_a_shipped_config_goes_by_name_from_anywhere_and_a_file_of_ones_own_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    by_name, by_path = load_config("demo"), load_config("configs/demo.yaml")
    assert by_name == by_path == load_config(ROOT / "configs" / "demo.yaml")
    Path("demo").write_text("seed: 7\n")
    assert find_config(Path("demo")) == Path("demo")
    assert load_config("demo").seed == 7
    Path("sums.yaml").touch()
    with pytest.raises(GermlineError, match=r"no file 'sums.yml' \(did you mean 'sums.yaml'"):
        load_config("sums.yml")


# --- the catalog behind lists, completion and reference


# --- completion


def words(offers: list[tuple[str, str]]) -> list[str]:
    return [word for word, _ in offers]


def test_configs_runs_and_folders_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunDirectory.create(Path("runs/one"), load_config({}), DIGEST, threads=1)
    run.release_lock()
    for offer, typed, expected in (
        (complete_configs, "de", ["demo"]),
        (complete_runs, "", ["runs/one"]),
        (complete_runs, "ru", ["runs/one"]),
        (complete_models, "", ["nano", "runs/one"]),
        (complete_runs, "nowhere/x", []),
    ):
        assert words(offer(typed)) == expected
    assert "strategy.population=32" in words(complete_settings("strategy.pop"))


def test_every_offered_setting_with_a_default_is_one_a_config_takes() -> None:
    offers = [word for word, _ in complete_settings("held_out.")]
    for word in (one for one in offers if not one.endswith("=")):
        assert load_config({}, [word]) == load_config({})


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("germline eval nano --task co", {"conciseness", "countdown"}),
        ("germline sweep demo sweep.s", {"sweep.sampler=", "sweep.seeds=", "sweep.storage="}),
    ],
)
def test_bash_is_offered_words(line, offered):
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    code = "import sys; sys.argv = ['germline']; from germline.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **words, "_GERMLINE_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert set(done.stdout.split()) == offered
