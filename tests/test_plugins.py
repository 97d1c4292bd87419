"""The package of docs/extending.md is configured like built-in kinds, from outside germline."""

import json
import os
import re
from pathlib import Path

import pytest

from germline.record import RunDirectory
from germline.types import GermlineError
from tests.command_line import command
from tests.other_process import python

# It trains in a process of its own, with the package installed.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL))

OVERRIDES = (
    *("generations=3", "batch_size=4", "held_out={every: 2, examples: 4}", "strategy.sigma=0.4"),
    *("record={tensorboard: false}", "task.temperature=1"),
    *("task.max_new_tokens=12", "graders.workers=1"),
)

SCENE = """
import json, sys
from pathlib import Path
import germline
import germline.run.observers
from germline.cli.application import app
from germline.record import RunDirectory
from germline.report.html_page import _environment
from germline.types import GermlineError
from tests.command_line import command
from typer.testing import CliRunner

# As in the tests' own process: drawing takes most of the time of a short run.
germline.run.observers.draw_evolution = lambda _run: None
_environment().filters["svg"] = lambda _chart: ""
overrides = json.loads(sys.argv[1])
run = lambda *words: CliRunner().invoke(app, list(words))
facts = {}
trained = run("train", "theirs.yaml", *overrides, "--out", "trained")
facts["exit"] = trained.exit_code, trained.output[-2000:]
config = RunDirectory.open(Path("trained")).config
facts["kinds"] = [
    part.kind for part in (config.strategy, config.space, config.engine, config.method)
]
facts["settings"] = [config.method.winners]
facts["parts"] = list(RunDirectory.open(Path("trained")).generations()[0]["parts"])
facts["settings"] += [config.strategy.step, config.strategy.sigma, config.space.ending]
entries = RunDirectory.open(Path("trained")).journal.read()
facts["digests"] = [entry.digest for entry in entries]
facts["moved"] = any(any(entry.update.coefficients) for entry in entries)
facts["replayed"] = germline.replay("trained", 1)

stopped = germline.train(germline.load_config("theirs.yaml", overrides), "stopped")
for record in stopped:
    stopped.stop()
for record in germline.resume("stopped"):
    pass
resumed = RunDirectory.open(Path("stopped")).journal.read()
facts["resumed"] = [entry.digest for entry in resumed]
facts["texts"] = [one.text for one in germline.generate("trained", ["abc"], max_new_tokens=8)]
facts["listed"] = {
    what: [line for line in run("list", what).output.splitlines() if "germline-theirs" in line]
    for what in ("strategies", "spaces", "engines", "rewards", "methods", "scorers")
}
facts["setting"] = [
    line
    for line in run("list", "settings").output.splitlines()
    if line.startswith("strategy.step\\t")
]

def refused(*settings):
    try:
        germline.load_config("theirs.yaml", settings)
    except GermlineError as error:
        return str(error)

facts["unknown"] = refused("strategy.stop=1")
facts["misspelled"] = refused("strategy.kind=sign_serch")
facts["reward"] = refused("task.reward=vowls")
print(json.dumps(facts))
"""


def install(folder):
    """Put the package of the page into a folder as pip does with `--target`."""
    for name in ("theirs/settings.py", "theirs/search.py"):
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(FILES[name], encoding="utf-8")
    (folder / "theirs" / "__init__.py").touch()
    about = folder / "germline_theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: germline-theirs\nVersion: 1.0\n")
    (point,) = re.findall(r'"germline\.plugins"\]\ntheirs = "(.*)"', FILES["pyproject.toml"])
    (about / "entry_points.txt").write_text(f"[germline.plugins]\ntheirs = {point}\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("plugins")
    (made / "site").mkdir()
    install(made / "site")
    (made / "theirs.yaml").write_text(FILES["theirs.yaml"], encoding="utf-8")
    rows = [{"prompt": f"Say {n}", "answer": str(n)} for n in range(20)]
    (made / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def facts(folder):
    """What a Python found in which the package is installed."""
    paths = os.pathsep.join([str(folder / "site"), str(ROOT)])
    done = python("-c", SCENE, json.dumps(OVERRIDES), cwd=folder, PYTHONPATH=paths)
    return json.loads(done.stdout.splitlines()[-1])


def test_a_run_takes_kinds_settings_and_rewards_of_the_package(facts):
    assert facts["exit"][0] == 0, facts["exit"][1]
    assert facts["kinds"] == ["sign_search", "biases", "upper_case", "best_members"]
    assert facts["settings"] == [3, 0.2, 0.4, "bias"]
    assert facts["parts"] == ["vowels", "loud"]
    assert facts["moved"]
    (text,) = facts["texts"]
    assert text[:3] == text[:3].upper()
    assert facts["replayed"] == facts["digests"][1]
    assert facts["resumed"] == facts["digests"]
    assert len(set(facts["digests"])) == 3


def test_what_the_package_adds_is_listed_with_its_settings(facts):
    for what, name in {
        "strategies": "sign_search",
        "spaces": "biases",
        "engines": "upper_case",
        "rewards": "vowels",
        "methods": "best_members",
        "scorers": "exclamations",
    }.items():
        (line,) = facts["listed"][what]
        assert line.startswith(name)
    (setting,) = facts["setting"]
    assert "Learning rate." in setting


def test_mistakes_in_its_settings_are_told_as_those_in_built_in_ones(facts):
    assert "strategy.stop: unknown setting (did you mean 'step'?)" in facts["unknown"]
    assert "no kind 'sign_serch' (did you mean 'sign_search'?)" in facts["misspelled"]
    assert "(did you mean 'vowels'?)" in facts["reward"]


def test_without_the_package_its_runs_name_the_kind_that_is_missing(facts, folder):
    with pytest.raises(GermlineError, match=r"there is no kind 'sign_search'"):
        RunDirectory.open(folder / "trained")
    assert "there is no kind" in command("list", "runs", folder).stderr
