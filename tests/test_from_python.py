"""Runs whose rewards and rows come from Python instead of from a config."""

import json
import logging
import time
from typing import Any

import pytest

import germline
from germline.graders.pool import InProcessPool
from germline.tasks.python_inputs import read_rows
from germline.types import Example, GermlineError
from tests.python_rewards import length, trl_length, vowels
from tests.toy_runs import LETTERS, SETTINGS, journal, stopped_after

ROWS = [{"prompt": f"Say {number}", "answer": str(number), "level": number} for number in range(12)]
TOY = {
    **{name: value for name, value in SETTINGS.items() if name != "task"},
    "graders": {"workers": 1},
}
DECODING = {"max_new_tokens": 16, "stop": LETTERS, "temperature": 1.0}
ON_ROWS = {**TOY, "task": DECODING}

ROWS_FILE = f"train = {ROWS!r}\n"
LENGTH = "def length(completion, example):\n    return min(len(completion), 9) / 9\n"

VOWELS = "def vowels(completion, example):\n    return sum(one in 'aeiou' for one in completion)\n"
EXAMPLE = Example(0, "a?", "a", chat=True)


def keep_in(seen):
    """Return a reward that keeps the rows that it is given."""

    def reward(completion, example):
        seen.append(example)
        return 0.5

    return reward


def mean_at_end(training):
    assert training.end
    return training.end.mean


def of_a_file(folder, *lines):
    """Train the same rows by a task file, as the command line does."""
    path = folder / "task.py"
    path.write_text(ROWS_FILE + "\n".join(lines))
    config = {**TOY, "task": {"path": str(path), **DECODING}}
    return germline.train(config, folder / "file").run().directory.path


def rewards_of(path):
    return (path / "rollouts.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize("reward", [length, trl_length, lambda text, row: min(len(text), 9) / 9])
def test_a_function_and_rows_train_to_the_bits_of_a_task_file(tmp_path, reward):
    of_file = of_a_file(tmp_path, LENGTH, "rubric = {length: 1.0}")
    training = germline.train(ON_ROWS, tmp_path / "run", reward=reward, data=ROWS).run()
    assert journal(training.directory.path) == journal(of_file)
    assert mean_at_end(training) == mean_at_end(germline.resume(of_file))


def test_a_function_that_cannot_be_imported_grades_the_text_without_its_thinking(tmp_path):
    seen = []

    def reward(completion, example):
        seen.append(completion)
        return 0.5

    config = {**ON_ROWS, "task": {**DECODING, "strip_thinking": True}}
    training = germline.train(config, tmp_path / "run", reward=reward, data=ROWS)
    pool = training._parts.graders
    assert isinstance(pool, InProcessPool)
    pool.submit(["<think>hm</think>yes"], [training._parts.task.examples("train")[0]])
    assert seen[-1] == "yes"
    assert mean_at_end(training.run()) == 0.5


def test_several_functions_have_weights_and_are_recorded_by_name(tmp_path):
    of_file = of_a_file(tmp_path, LENGTH, VOWELS, "rubric = {length: 1.0, vowels: 0.1}")
    rewards = {length: 1.0, vowels: 0.1}
    training = germline.train(ON_ROWS, tmp_path / "run", reward=rewards, data=ROWS).run()
    assert journal(training.directory.path) == journal(of_file)
    assert rewards_of(training.directory.path) == rewards_of(of_file)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["config"]["task"]["reward_functions"] == {"length": 1.0, "vowels": 0.1}
    assert len(facts["config"]["task"]["digest"]) == 64


def test_rows_of_a_file_reach_a_function_whole(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n}?", "gold": n}) + "\n" for n in range(9)))
    config = {**TOY, "task": {"kind": "jsonl", "path": str(file), **DECODING}, "generations": 1}
    seen: list[dict[str, Any]] = []
    germline.train(config, tmp_path / "run", reward=keep_in(seen)).run()
    assert all(f"{row['gold']}?" == row["prompt"] for row in seen)
    with pytest.raises(GermlineError, match="data: task=jsonl has examples of its own"):
        germline.train(config, data=ROWS)
    built_in = {**TOY, "task": {"reward": {"contains": 1.0}, **DECODING}, "generations": 1}
    training = germline.train(built_in, tmp_path / "built in", data=ROWS).run()
    assert training.end
    assert training.end.metric == "contains"


class Table:
    """A pandas DataFrame as far as it is read."""

    columns = ("prompt", "answer")

    def to_dict(self, orient):
        assert orient == "records"
        return [{"prompt": "a?", "answer": float("nan")}, {"prompt": "b?", "answer": "b"}]


def test_rows_come_from_a_table_without_its_missing_values():
    rows = read_rows(Table()).train
    assert [row for _, row in rows] == [{"prompt": "a?"}, {"prompt": "b?", "answer": "b"}]


def test_rows_come_from_a_dataset_and_its_splits():
    datasets = pytest.importorskip("datasets")
    one = datasets.Dataset.from_list([{"prompt": "a?", "answer": "a"}, {"prompt": "b?"}])
    given = read_rows(datasets.DatasetDict({"train": one, "test": one.select([0])}))
    assert [row for _, row in given.train] == [{"prompt": "a?", "answer": "a"}, {"prompt": "b?"}]
    assert given.test == [("data, test row 0", {"prompt": "a?", "answer": "a"})]


def test_the_warning_names_the_function_that_takes_the_others_here_once(tmp_path, caplog):
    def local(completion, example):
        return 0.5

    given: dict[str, Any] = {"reward": [length, local], "data": ROWS}
    with caplog.at_level(logging.WARNING):
        run = germline.train({**ON_ROWS, "generations": 1}, tmp_path / "run", **given).run()
        germline.evaluate(str(run.directory.path), **given)
    (warning,) = [one.getMessage() for one in caplog.records if "imported" in one.getMessage()]
    assert warning.startswith("reward: local cannot be imported")


def in_process(reward, timeout_s=0.05):
    return InProcessPool(reward, {"right": 1.0}, {"right": -1.0}, timeout_s)


@pytest.mark.parametrize(
    ("reward", "failure"),
    [
        (lambda text, example: time.sleep(600), "timeout after 0.05 s"),
        (lambda text, example: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_reward_that_fails_earns_the_floor_here_too(reward, failure):
    (grade,) = in_process(reward).submit(["a"], [EXAMPLE]).result()
    assert (grade.reward, grade.failure) == (-1.0, failure)


def test_a_stopped_run_asks_for_what_was_given_and_goes_on_to_the_same_bits(tmp_path):
    whole = germline.train(ON_ROWS, tmp_path / "whole", reward=length, data=ROWS).run()
    training = germline.train(ON_ROWS, tmp_path / "part", reward=length, data=ROWS)
    path = stopped_after(training, 2)
    with pytest.raises(GermlineError, match=r"rows of this task \(digest \w{12}\) were given"):
        germline.resume(path)
    with pytest.raises(GermlineError, match=r"'length': 1.0\}, but reward gives none"):
        germline.resume(path, data=ROWS)
    with pytest.raises(GermlineError, match=r"task\.reward_functions="):
        germline.resume(path, data=ROWS, reward=vowels)
    with pytest.raises(GermlineError, match=r"task\.digest=.* have changed since"):
        germline.resume(path, data=ROWS[:-1], reward=length)
    germline.resume(path, data=ROWS, reward=length).run()
    assert journal(path) == journal(whole.directory.path)
    assert germline.replay(path, 3) == germline.replay(whole.directory.path, 3)


def test_a_run_is_evaluated_with_what_was_given(tmp_path):
    training = germline.train(ON_ROWS, tmp_path / "run", reward=length, data=ROWS).run()
    path = str(training.directory.path)
    with pytest.raises(GermlineError, match="given from Python"):
        germline.evaluate(path)
    score, _ = germline.evaluate(path, reward=length, data=ROWS, limit=5)
    assert (score.mean, score.metric) == (mean_at_end(training), "length")
    others = [{"prompt": "Say A"}, {"prompt": "Say B"}]
    score, _ = germline.evaluate(
        path, "rows", reward=vowels, data={"train": others, "test": others}
    )
    assert (score.metric, score.n) == ("vowels", 2)
