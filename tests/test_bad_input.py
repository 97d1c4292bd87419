"""Bad input: mistakes in configs, and by callers from Python."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from germline.config import load_config
from germline.config.rules import IGNORED, IMPOSSIBLE
from germline.types import GermlineError
from tests.command_line import command
from tests.other_process import python

ROWS = yaml.safe_load((Path(__file__).parent / "config_inputs.yaml").read_text(encoding="utf-8"))


def row_id(value: object) -> str | None:
    return value if isinstance(value, str) else str(value)[:60]


@pytest.mark.parametrize(("setting", "config", "overrides"), ROWS["refused"], ids=row_id)
def test_a_config_is_refused_with_the_name_of_the_setting(
    setting: str, config: dict[str, Any], overrides: list[str]
) -> None:
    with pytest.raises(GermlineError, match=rf"(?s)^config: .*(?<![\w.]){re.escape(setting)}\b"):
        load_config(config, overrides)


@pytest.mark.parametrize(("config", "overrides"), ROWS["accepted"], ids=row_id)
def test_a_config_is_accepted(config: dict[str, Any], overrides: list[str]) -> None:
    load_config(config, overrides)


def test_every_rule_refuses_a_row() -> None:
    rules = [*IGNORED, *IMPOSSIBLE]
    for setting, config, overrides in ROWS["refused"]:
        try:
            load_config(config, overrides)
        except GermlineError as error:
            for rule in rules[:]:
                cause = next(iter(rule.beside))
                said = [f"{setting}=", rule.remedy, *([f" with {cause}="] if cause else [])]
                if setting in rule.settings.split() and all(one in str(error) for one in said):
                    rules.remove(rule)
    assert rules == []


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("task=contdown", "'countdown'"),
        ("strategy.sigma=AUTO", "'auto'"),
        ("engine.dtype=floot16", "'float16'"),
        ("sigma=0.1", "strategy.sigma"),
        ("strategy.lr=0.1", "strategy.learning_rate"),
        ("task.tempurature=1", "'temperature'"),
        ("engine={kind: toy, device: cpu}", "inprocess"),
        ("strategy={optimizer.kind: adam}", "optimizer: {kind: ...}"),
    ],
)
def test_a_misspelled_name_gets_a_suggestion(override: str, hint: str) -> None:
    with pytest.raises(GermlineError, match=re.escape(hint)):
        load_config({}, [override])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("task:\n\tkind: countdown\n", "line 2, column 1"),
        ("seed: 1\ntask: countdown\nseed: 2\n", "line 3, column 1"),
        ("seed: 1\n---\nseed: 2\n", "line 2, column 1"),
        ("task:countdown\n", "found 'task:countdown'"),
        ("# nothing yet\n", "found None"),
        ("strategy.sigma: 0.1\n", "strategy: {sigma: ...}"),
        ("task: caf\xe9\n", "'utf-8' codec"),
    ],
)
def test_a_mistake_in_a_file_names_its_place(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(GermlineError, match=rf"(?s)^config: .*{re.escape(words)}"):
        load_config(file)


CALLS = {
    "train({1: 2})": "config: 1: ",
    "load_config({}, {'seed': 3})": "must be a list of texts: ['seed=3']",
    "export('run', 'out', form='peft')": "form must be 'adapter' or 'merged' or None, found 'peft'",
    "evaluate('nano', 'arithmetic', split='tets')": "'unseen', found 'tets'",
    "evaluate('nano', 'arithmetic', limit='3')": "limit must be a number from 1 on",
    "evaluate('nano', 3)": "config: task: ",
    "generate('nano', ['a'], overrides=['engine.device=cuda:99'])": "'cuda:99' cannot be used here",
    "evaluate('nano', 'arithmetic', out='.')": "out: . exists and holds no completions",
    "generate('nano', 'hello')": "prompts must be a list of Unicode texts, found 'hello'",
    "generate('nano', ['\\ud800'])": "prompts must be a list of Unicode texts, found ['\\ud800']",
    "generate('nano', [''], chat=False)": "the prompt of example 0 has no tokens: ''; give it",
    "generate('nano', ['a'], top_p=0)": "task.top_p: ",
}


def test_a_wrong_argument_is_told_as_one(tmp_path: Path) -> None:
    script = (
        "import json, sys, germline\nsaid = {}\n"
        "for call in json.load(sys.stdin):\n"
        "    try:\n"
        "        said[call] = f'nothing: {eval(\"germline.\" + call)}'\n"
        "    except Exception as error:\n"
        "        said[call] = f'{type(error).__name__}: {error}'\n"
        "print(json.dumps(said))\n"
    )
    done = python("-W", "error", "-c", script, given=json.dumps(list(CALLS)), cwd=tmp_path)
    for call, said in json.loads(done.stdout).items():
        assert said.startswith("GermlineError: "), call
        assert CALLS[call] in said, call


def test_completions_that_could_not_be_written_are_not_computed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ("eval", "no such model", "--task", "arithmetic")
    shown = command(*words, "--out", tmp_path / "file" / "c.jsonl")
    assert shown.exit_code == 2
    assert "c.jsonl cannot be made, as " in shown.stderr
