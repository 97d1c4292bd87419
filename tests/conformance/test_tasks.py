"""What every task must do, whichever it is: the shipped tests over the table of tasks."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from germline.config import (
    Arithmetic,
    Conciseness,
    Countdown,
    Dataset,
    EpisodeSettings,
    Gsm8k,
    Jsonl,
    Math,
    Multiplication,
    PythonFile,
    Rows,
    SafeAlignment,
    TaskBase,
)
from germline.registry import sections
from germline.tasks import make_task
from germline.tasks.python_inputs import NO_INPUTS, read_inputs
from germline.testing import TaskConformance
from tests.slow_cases import mostly_slow

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
    "rows.json": json.dumps(ROWS),
    "gsm8k.jsonl": "".join(
        json.dumps({"question": row["prompt"], "answer": f"So #### {row['answer']}"}) + "\n"
        for row in ROWS
    ),
    "math.jsonl": "".join(
        json.dumps({"problem": row["prompt"], "answer": row["answer"]}) + "\n" for row in ROWS
    ),
}
SETTINGS: dict[str, Callable[..., TaskBase]] = {
    "arithmetic": Arithmetic,
    "conciseness": Conciseness,
    "countdown": Countdown,
    "multiplication": Multiplication,
    "python": lambda **more: PythonFile(path=FILES["task.py"], **more),
    "jsonl": lambda **more: Jsonl(
        path=FILES["rows.jsonl"],
        reward={"exact": 1.0, "numeric": 1.0, "contains": 0.5, "json": -0.5, "length": 0.01},
        **more,
    ),
    "dataset": lambda **more: Dataset(path=FILES["rows.json"], reward="numeric", **more),
    "rows": lambda **more: Rows(reward="numeric", **more),
    "gsm8k": lambda **more: Gsm8k(path=FILES["gsm8k.jsonl"], **more),
    "math": lambda **more: Math(path=FILES["math.jsonl"], **more),
}
"""How the settings of every task are made; files are written when the tests begin."""

FULL_REWARD = {
    "arithmetic": 1.0,
    "conciseness": 0.0,
    "countdown": 1.1,
    "multiplication": 1.0,
    "python": 1.0,
    "jsonl": 2.0,
    "dataset": 1.0,
    "rows": 1.0,
    "gsm8k": 1.0,
    "math": 1.0,
}


@pytest.fixture(scope="module", autouse=True)
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    for name, text in FILES.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        FILES[name] = path


KINDS = [
    kind
    for kind, section in sections("task").items()
    if not issubclass(section, EpisodeSettings | SafeAlignment)
]
"""Tasks of episodes, and prompts without gold answers, have tests of their own, in
test_environments.py and test_tasks.py."""


@pytest.mark.parametrize("kind", mostly_slow(sorted(KINDS), quick={*KINDS} - {"gsm8k", "math"}))
class TestTasks(TaskConformance):
    @pytest.fixture(autouse=True)
    def _of_a_kind(self, kind):
        self.kind = kind
        self.full_reward = FULL_REWARD[kind]

    def make(self, split_seed):
        inputs = read_inputs(data=ROWS) if self.kind == "rows" else NO_INPUTS
        return make_task(SETTINGS[self.kind](split_seed=split_seed), inputs)
