"""What the command line says about itself: lists and versions."""

from pathlib import Path

import pytest

from germline import registry
from germline.config import load_config
from germline.config.config_files import config_summary, find_config, preset_configs
from germline.types import GermlineError
from tests.command_line import command

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
