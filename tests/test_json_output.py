"""`--json` prints one document on stdout, with the fields that docs/run-directory.md says."""

import json
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from checks.reference import DOCS
from germline.cli.application import app
from germline.cli.output import print_json
from germline.endpoint.http_app import UvicornService
from germline.studies.sweep_results import SweepTrial
from tests.documented_fields import absent, field_tables, undocumented
from tests.scripted_server import listening
from tests.slow_cases import mostly_slow
from tests.tiny_classifiers import save_classifier

pytestmark = pytest.mark.usefixtures("graded_in_process")

TABLES = field_tables(DOCS / "run-directory.md", "JSON output")
TINY = (
    *("demo", "generations=2", "batch_size=4", "strategy.population=4", "held_out.examples=4"),
    *("record.tensorboard=false", "strategy.sigma=0.01", "strategy.learning_rate=0.01"),
)
DEFAULTED = {"[].reason", "[].default", "[].remedy", "[].seeds", "[].runs"}
DEFAULTED |= {"[].kl", "[].behavior"}  # of --kl, which is tested for itself

COMMANDS = {
    # heading of the table -> words of the command, with the run that was trained for the tests
    "train": ("train", *TINY, "--out", "trained"),
    "train seeds=0..4": ("train", *TINY, "seeds=0,1", "--out", "seeds"),
    "train --dry-run": ("train", *TINY, "--dry-run"),
    "eval": ("eval", "run", "nano", "--limit", "2", "--samples", "2"),
    "elo": ("elo", "run", "-g", "-1", "-g", "1", "--limit", "2", "judge.url=JUDGE"),
    "probe": ("probe", *TINY[:5], "--minutes", "10"),
    "export": ("export", "run", "--out", "exported", "--verify"),
    "report": ("report", "run"),
    "compare": ("compare", "nano_es_vs_rl", "--only", "es", "--jobs", "0", "--out", "study"),
    "sweep": (
        *("sweep", *TINY, "--over", "space.yaml", "--budget", "trials=1", "sweep.seeds=1"),
        *("sweep.test_seeds=0", "sweep.random=false", "--out", "sweep"),
    ),
    "analyze": ("analyze", "deltas", "run", "spectrum_width=0"),
    "generate": ("generate", "nano", "Hello", "--max-new-tokens", "2"),
    "serve": ("serve", "run", "--port", "0"),
    "serve --reward": ("serve", "--reward", "reward-model", "--port", "0"),
    "list runs": ("list", "runs", "."),
    "list tasks": ("list", "tasks"),
    "doctor": ("doctor",),
    "check": ("check", "arithmetic"),
    "new NAME": ("new", "riddles"),
    "new --task": ("new", "--model", "nano", "--task", "arithmetic"),
}


def judge_reply(path, _body):
    if path == "/models":
        return 200, {"data": [{"id": "judge"}]}
    return 200, {"choices": [{"message": {"content": "[[A]]"}, "finish_reason": "stop"}]}


def germline(*words):
    return CliRunner().invoke(app, [*words, "--json"])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("json")
    done = germline("train", *TINY, "--out", str(folder / "run"))
    assert done.exit_code == 0, done.output
    save_classifier(folder / "reward-model")
    (folder / "space.yaml").write_text("strategy.sigma: {log: [0.001, 0.1]}")
    return folder


def test_every_table_is_tested_and_every_command_has_one():
    assert set(TABLES) == {*COMMANDS, "error", "score"}
    verbs = {heading.split()[0] for heading in COMMANDS} | {"resume"}
    root: Any = get_command(app)
    assert verbs == set(root.commands)


@pytest.mark.parametrize(
    "heading", mostly_slow(COMMANDS, quick=COMMANDS.keys() - {"probe", "sweep"})
)
def test_the_document_is_as_documented(heading, place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(UvicornService, "run", lambda _server: None)
    monkeypatch.setattr(SweepTrial, "is_better", True)  # one of two generations may not be
    with listening(judge_reply) as judge:
        done = germline(*(one.replace("JUDGE", judge.url) for one in COMMANDS[heading]))
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    table = TABLES[heading]
    assert undocumented(document, table, score=TABLES["score"]) == []
    fixed = {name for name in table if "." not in name.removeprefix("[].") and "[]" not in name[1:]}
    assert absent([document], table) & fixed - DEFAULTED == set()


def test_the_divergence_of_a_run_is_as_documented(place, monkeypatch):
    monkeypatch.chdir(place)
    document = json.loads(germline("eval", "run", "--kl", "--limit", "2").stdout)
    assert undocumented(document, TABLES["eval"], score=TABLES["score"]) == []
    named = {name for name in TABLES["eval"] if "kl" in name or "texts" in name}
    assert absent([document], TABLES["eval"]) & named == set()


def test_resume_prints_what_train_prints(place, monkeypatch):
    monkeypatch.chdir(place)
    document = json.loads(germline("resume", "run", "generations=3").stdout)
    assert undocumented(document, TABLES["train"], score=TABLES["score"]) == []
    assert (document["state"], document["generations"]) == ("finished", 3)


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (("train", "demo", "generation=3"), "GermlineError", "generations"),
        (("eval", "no-such-run"), "GermlineError", "no-such-run"),
        (("train", "demo", "--no-such-option"), "UsageError", "--no-such-option"),
        (("no-such-command",), "UsageError", "no-such-command"),
        (("export",), "UsageError", "RUN"),
    ],
)
def test_an_error_is_a_document_too(words, kind, said):
    done = germline(*words)
    document = json.loads(done.stdout)
    assert undocumented(document, TABLES["error"]) == []
    assert (document["error"]["type"], document["error"]["exit_status"]) == (kind, 2)
    assert said in document["error"]["message"]
    assert done.exit_code == 2


def test_json_after_two_dashes_is_a_prompt():
    done = CliRunner().invoke(app, ["generate", "no-such-model", "--", "--json"])
    assert done.exit_code == 2
    assert done.stdout == ""


def test_numbers_and_half_characters_that_json_lacks_are_written(capsys):
    print_json({"a": float("nan"), "b": [float("inf"), 1.0], "text": "a\ud800b\u00e9"})
    written = json.loads(capsys.readouterr().out)
    assert written == {"a": None, "b": [None, 1.0], "text": "a\ud800b\u00e9"}
