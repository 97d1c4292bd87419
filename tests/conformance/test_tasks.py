"""What every task must do, whichever it is: parametrised over the table of tasks."""

import math
import pickle
import time

import pytest

from germline.config import Arithmetic, Conciseness, Countdown
from germline.graders.pool import GraderPool
from germline.protocols import Task
from germline.registry import resolve
from germline.tasks import TASKS

SETTINGS = {"arithmetic": Arithmetic, "conciseness": Conciseness, "countdown": Countdown}
FULL_REWARD = {"arithmetic": 1.0, "conciseness": 0.0, "countdown": 1.1}
LONG = 100_000
HOSTILE = (
    "",
    " ",
    "\x00\x1b[2J\r\n",
    "\ud800",
    "\u202e\u0663\ufeff",
    "9**9**9",
    "<answer>9**9**9</answer>",
    " </think>\n<answer>__import__('os').abort()</answer>",
    "<answer>" * LONG,
    "<answer>" + "(" * LONG + "1" + ")" * LONG + "</answer>",
    "<answer>" + "-" * LONG + "1</answer>",
    "9" * LONG,
    "a" * 10 * LONG,
    "{{7*7}} %s %n ${HOME} '; drop table runs; --",
)


@pytest.fixture(scope="module", params=sorted(TASKS))
def task(request):
    return make(request.param)


def make(name, seed=0):
    return resolve("tasks", TASKS, name)(SETTINGS[name](split_seed=seed))


def reward(task, text, example):
    parts = task.grader(text, example)
    return sum(weight * parts[part] for part, weight in task.rubric.items())


def test_every_task_of_the_table_has_settings_and_its_name(task):
    assert set(TASKS) == set(SETTINGS)
    assert task.name in TASKS
    assert isinstance(task, Task)


def test_the_metric_is_a_part_of_the_rubric_and_so_is_the_floor(task):
    assert task.metric in task.rubric
    assert set(task.floor) == set(task.rubric)
    assert all(map(math.isfinite, (*task.rubric.values(), *task.floor.values())))


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_gold_answer_earns_the_full_reward(task, split):
    for example in task.examples(split):
        assert reward(task, example.answer, example) == FULL_REWARD[task.name]


def test_an_empty_answer_earns_less(task):
    for example in task.examples("test"):
        assert reward(task, "", example) < FULL_REWARD[task.name]


def test_hostile_text_neither_hangs_nor_crashes_the_grader(task):
    texts = [text for text in HOSTILE for _ in range(2)]
    examples = [task.examples("train")[0], task.examples("test")[-1]] * len(HOSTILE)
    with GraderPool(task.grader, task.rubric, task.floor, timeout_s=20.0) as pool:
        grades = pool.submit(texts, examples).result(timeout=60)
    assert [grade.failure for grade in grades] == [None] * len(texts)


def test_no_text_takes_the_grader_long(task):
    started = time.process_time()
    for text in HOSTILE:
        task.grader(text, task.examples("test")[0])
    assert time.process_time() - started < 2.0  # 30 ms measured


def test_no_reward_is_below_the_floor(task):
    floor = sum(weight * task.floor[part] for part, weight in task.rubric.items())
    for text in HOSTILE:
        assert floor <= reward(task, text, task.examples("test")[0])


def test_the_grader_names_exactly_the_parts_of_the_rubric(task):
    assert set(task.grader("some text", task.examples("test")[0])) == set(task.rubric)


def test_the_splits_share_no_prompt(task):
    train, test = ([example.prompt for example in task.examples(s)] for s in ("train", "test"))
    assert len({*train, *test}) == len(train) + len(test)


def test_the_splits_are_the_same_every_time_and_differ_with_their_seed(task):
    again, other = make(task.name), make(task.name, seed=1)
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
