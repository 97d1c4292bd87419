"""SmolLM2-135M-Instruct, a real pretrained chat model."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import germline
from checks import smollm2
from germline.cli.application import app
from germline.graders.task_file import load_task_file
from tests.merged_models import assert_same_tokens
from tests.test_docs import commands

FOLDER = smollm2.MODELS / smollm2.NAME
FILE = FOLDER.with_name(f"{smollm2.NAME}.Q4_1.gguf")
QUESTION = "What is the capital of France?"

fetched = pytest.mark.skipif(
    not (FOLDER.is_dir() and FILE.is_file()), reason=f"{FILE} is missing: run `make smollm2`"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "run"
    values = {
        "model": str(FOLDER),
        "task": {"kind": "conciseness", "max_new_tokens": 8},
        "strategy": {"population": 2, "sigma": 0.001, "learning_rate": 0.001},
        "engine": {"dtype": "float32", "device": "cpu"},
        "generations": 1,
        "batch_size": 1,
        "held_out": {"examples": 1},
    }
    germline.train(values, run).run()
    return run


@fetched
def test_an_export_of_a_run_writes_the_same_tokens(trained, tmp_path):
    germline.export(trained, tmp_path / "exported", form="merged")
    assert "Paris" in assert_same_tokens(trained, tmp_path / "exported", QUESTION, 12)


TASKS = FOLDER.parents[1] / "configs/smollm2"
PAGE = Path(__file__).parents[1] / "docs/teach-smollm2.md"


@fetched
def test_the_page_that_teaches_it_runs_from_nothing_at_a_small_size(tmp_path, monkeypatch):
    monkeypatch.chdir(FOLDER.parents[1])
    small = ["generations=1", "batch_size=2", "held_out.examples=1"]
    small += ["strategy.population=2", "strategy.sigma=0.001", "retained.facts.examples=1"]
    run = str(tmp_path / "run")
    outputs = []
    for line in commands(PAGE):
        words = [run if word == "runs/short" else word for word in shlex.split(line)[1:]]
        done = CliRunner().invoke(app, words + (small if words[0] == "train" else []))
        assert done.exit_code == 0, done.output
        outputs.append(done.stdout)
    before, _trained, after = outputs
    for answer in (before, after):  # a single small update changes few answers
        assert re.search(r"> What is the opposite of easy\?\n\w", answer)
    assert "difficult" in before


KEYS = {"keys": ["a", "b"]}
JSON = '{"a": "c", "b": "d"}'


@pytest.mark.parametrize(
    ("name", "example", "answers"),
    [
        ("capital_letters", {}, ("", "Moscow", "MOScow", "MOSCOW")),
        ("the_answer_is", {}, ("", "The capital is Moscow.", "The answer is Moscow.")),
        ("short_answers", {"answer": "12|twelve"}, ("", "There are 12 months.", "Twelve.")),
        ("short_answers", {"answer": "12|twelve"}, ("Ten.", "There are 12 months.", "12")),
        ("one_word", {"answer": "plant"}, ("A plant or a tool.", "Clover is a plant.", "Plant")),
        ("one_word", {"answer": "plant"}, ("?", "Clover is a plant.", "Plant")),
        ("json_keys", KEYS, ("", '{"a": "c"} {', '{"a": "c"}', JSON)),
        ("json_keys", KEYS, ("{}", f"```{JSON}```", JSON)),
        ("json_keys", KEYS, ('{"a": "", "b": 1}', f"{JSON} {JSON}", JSON)),
        ("json_keys", KEYS, ('[{"a": 1}]', '{"a": "c"}', JSON)),
    ],
)
def test_a_shipped_task_rewards_what_it_asks_for(name, example, answers):
    reward = load_task_file(TASKS / f"{name}.py").module.reward
    rewards = [reward(answer, example) for answer in answers]
    assert rewards == sorted(set(rewards))
    assert (rewards[0], rewards[-1]) == (0, 1)


def test_no_question_is_asked_twice():
    facts = load_task_file(FOLDER.parents[1] / "benchmarks/facts.py").module
    asked = [row["prompt"] for row in facts.train]
    for name in ("capital_letters", "short_answers", "one_word", "json_keys"):
        task = load_task_file(TASKS / f"{name}.py").module
        prompts = asked + [row["prompt"] for row in (*task.train, *task.test)]
        assert len({*prompts}) == len(prompts)
