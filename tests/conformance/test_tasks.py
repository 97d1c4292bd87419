"""What every task must do, whichever it is: parametrised over the table of tasks."""

import json
import math
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest

from germline.config import (
    Arithmetic,
    Conciseness,
    Countdown,
    Jsonl,
    Multiplication,
    Python,
    TaskBase,
)
from germline.graders.hostile import HOSTILE, fuzzed
from germline.graders.pool import GraderPool
from germline.protocols import Task
from germline.registry import resolve
from germline.tasks import TASKS

ROWS = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(40)]
PYTHON_FILE = f"""
train = {ROWS!r}


def right(completion, example):
    return completion.strip() == example["answer"]


def brevity(completion, example):
    return -min(len(completion), 1000)


rubric = {{right: 1.0, brevity: 0.0}}
settings = {{"floor": {{"brevity": -1000}}}}
"""
FILES: dict[str, Any] = {
    "task.py": PYTHON_FILE,
    "rows.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
}
SETTINGS: dict[str, Callable[..., TaskBase]] = {
    "arithmetic": Arithmetic,
    "conciseness": Conciseness,
    "countdown": Countdown,
    "multiplication": Multiplication,
    "python": lambda **more: Python(path=FILES["task.py"], **more),
    "jsonl": lambda **more: Jsonl(
        path=FILES["rows.jsonl"],
        reward={"exact": 1.0, "numeric": 1.0, "contains": 0.5, "json": -0.5, "length": 0.01},
        **more,
    ),
}
"""How the settings of every task are made; files are written when the tests begin."""

FULL_REWARD = {
    "arithmetic": 1.0,
    "conciseness": 0.0,
    "countdown": 1.1,
    "multiplication": 1.0,
    "python": 1.0,
    "jsonl": 2.0,
}
TEXTS = ("", *HOSTILE)


@pytest.fixture(scope="module", autouse=True)
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    for name, text in FILES.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        FILES[name] = path


@pytest.fixture(scope="module", params=sorted(TASKS))
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def task(kind, files):
    return make(kind)


def make(kind, seed=0):
    return resolve("tasks", TASKS, kind)(SETTINGS[kind](split_seed=seed))


def reward(task, text, example):
    parts = task.grader(text, example)
    return sum(weight * parts[part] for part, weight in task.rubric.items())


def test_every_task_of_the_table_has_settings_and_its_name(task):
    assert set(TASKS) == set(SETTINGS)
    assert task.name in {*TASKS, "task", "rows"}
    assert isinstance(task, Task)


def test_the_metric_is_a_part_of_the_rubric_and_so_is_the_floor(task):
    assert task.metric in task.rubric
    assert set(task.floor) == set(task.rubric)
    assert all(map(math.isfinite, (*task.rubric.values(), *task.floor.values())))


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_gold_answer_earns_the_full_reward(task, kind, split):
    for example in task.examples(split):
        assert reward(task, example.answer, example) == FULL_REWARD[kind]


def test_an_empty_answer_earns_less(task, kind):
    for example in task.examples("test"):
        assert reward(task, "", example) < FULL_REWARD[kind]


def test_hostile_text_neither_hangs_nor_crashes_the_grader(task):
    texts = [text for text in (*TEXTS, *fuzzed(300)) for _ in range(2)]
    examples = [task.examples("train")[0], task.examples("test")[-1]] * (len(texts) // 2)
    with GraderPool(task.grader, task.rubric, task.floor, timeout_s=20.0) as pool:
        grades = pool.submit(texts, examples).result(timeout=60)
    assert [grade.failure for grade in grades] == [None] * len(texts)


def test_no_text_takes_the_grader_long(task):
    started = time.process_time()
    for text in TEXTS:
        task.grader(text, task.examples("test")[0])
    assert time.process_time() - started < 2.0  # 30 ms measured


def test_no_reward_is_below_the_floor(task):
    floor = sum(weight * task.floor[part] for part, weight in task.rubric.items())
    for text in TEXTS:
        assert floor <= reward(task, text, task.examples("test")[0])


def test_the_grader_names_exactly_the_parts_of_the_rubric(task):
    assert set(task.grader("some text", task.examples("test")[0])) == set(task.rubric)


def test_the_splits_share_no_prompt(task):
    train, test = ([example.prompt for example in task.examples(s)] for s in ("train", "test"))
    assert len({*train, *test}) == len(train) + len(test)


def test_the_splits_are_the_same_every_time_and_differ_with_their_seed(task, kind):
    again, other = make(kind), make(kind, seed=1)
    for split in ("train", "test"):
        assert tuple(again.examples(split)) == tuple(task.examples(split))
        assert tuple(other.examples(split)) != tuple(task.examples(split))


def test_examples_are_numbered_in_order(task):
    for split in ("train", "test"):
        indices = [example.index for example in task.examples(split)]
        assert indices == list(range(len(indices)))


def test_grader_and_examples_can_be_sent_to_another_process(task):
    assert pickle.loads(pickle.dumps(task.grader)) == task.grader
    example = task.examples("test")[0]
    assert pickle.loads(pickle.dumps(example)) == example
