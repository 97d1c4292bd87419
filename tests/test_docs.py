"""The docs say what is: links lead somewhere, settings and commands exist."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

import germline
from checks.reference import DOCS, pages
from germline.cli.application import app
from germline.config import load_config
from germline.config.reference import override_names

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("germline/**/README.md")])
GENERATED = pages()
ROOT_COMMAND: Any = typer.main.get_command(app)


def headings(path: Path) -> set[str]:
    """Return the anchors a page offers, as GitHub makes them."""
    text = GENERATED.get(path.name) or path.read_text(encoding="utf-8")
    found = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in found}


def test_every_setting_and_command_is_in_the_reference():
    page = GENERATED["config.md"]
    sections = {"record", "held_out", "graders", "microbatch"}
    named = {one.name.rpartition(".")[2] for one in override_names()} - {"kind"} - sections
    assert {name for name in named if f"\n| `{name}` |" not in page} == set()
    page = GENERATED["cli.md"]
    assert {name for name in ROOT_COMMAND.commands if f"\n## germline {name}" not in page} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file) if file else page
        generated = path.resolve().parent == DOCS and path.name in GENERATED
        assert generated or path.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in headings(path), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_configs_on_a_page_exist_and_are_valid(page):
    text = page.read_text(encoding="utf-8")
    if page.name != "CHANGELOG.md":  # which names files as they were
        folders = "germline|tests|checks|benchmarks|examples|configs"
        named = re.findall(rf"`((?:{folders})/[\w./-]+\.\w+)`", text)
        assert [name for name in named if not (ROOT / name).exists()] == []
    for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        load_config(yaml.safe_load(block))


def test_every_extra_is_on_the_page_about_installing():
    page = (DOCS / "getting-started.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert [name for name in extras if f"\n| `{name}` |" not in page] == []


def test_every_public_name_is_in_the_python_reference():
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    assert set(germline.__all__) <= set(re.findall(r"^::: germline\.(\w+)$", page, re.MULTILINE))


def commands(page: Path) -> list[str]:
    """Return the lines of code blocks that call germline."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("germline ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_on_a_page_exist_with_their_options(page):
    for line in commands(page):
        verb = ROOT_COMMAND
        words = shlex.split(line, comments=True)[1:]
        while words and hasattr(verb, "commands"):
            if words[0].startswith("-"):
                break
            assert words[0] in verb.commands, line
            verb = verb.commands[words.pop(0)]
        known = {"--help", *(o for p in verb.params for o in (*p.opts, *p.secondary_opts))}
        asked = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert asked <= known, line
