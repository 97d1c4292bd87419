"""What every environment must do: the shipped tests over the kinds of tasks with episodes."""

import re

import pytest

from germline.config import Environment, EpisodeSettings
from germline.registry import sections
from germline.tasks import make_task
from germline.testing import EnvironmentConformance

KINDS = sorted(
    kind
    for kind, section in sections("task").items()
    if issubclass(section, EpisodeSettings) and kind != "verifiers"  # see tests/test_verifiers.py
)

ENVIRONMENT = """
import asyncio
import random


class Sums:
    async def reset(self, a, b, seed):
        await asyncio.sleep(0)
        self.total = a + b + random.Random(seed).randint(0, 9)
        return f"Add {self.total - a - b} as well."

    async def step(self, reply):
        done = reply.strip() == str(self.total)
        return "No, try again.", done, {"right": float(done), "turns": -1.0}


train = [{"prompt": f"What is {a} + {a % 7}?", "a": a, "b": a % 7} for a in range(40)]
settings = {
    "max_turns": 3, "rubric": {"right": 1.0, "turns": 0.0}, "floor": {"turns": -10.0}
}
"""
TOOLS = """
class Calculator:
    def reset(self, a, b, c):
        self.value, self.result = a * b + c, None

    def add(self, a: int, b: int) -> int:
        self.result = a + b
        return self.result

    def multiply(self, a: int, b: int) -> int:
        self.result = a * b
        return self.result

    def get_reward(self):
        return float(self.result == self.value)


train = [{"prompt": f"{a} * 2 + 3", "a": a, "b": 2, "c": 3} for a in range(40)]
"""

CALL = '<tool_call>{{"name": "{}", "arguments": {{"a": {}, "b": {}}}}}</tool_call>'


def calculate(example, messages):
    a, b, c = (example.facts[name] for name in "abc")
    calls = [CALL.format("multiply", a, b), CALL.format("add", a * b, c), f"It is {a * b + c}."]
    return calls[len(messages) - 1]


def add_up(example, messages):
    (extra,) = re.findall(r"\d+", messages[0])
    return str(example.facts["a"] + example.facts["b"] + int(extra))


GOLD = {
    "wordle": lambda example, messages: f"I guess [{example.facts['secret']}].",
    "tools": calculate,
    "environment": add_up,
}
FULL_REWARD = {"wordle": 1.2, "tools": 1.0, "environment": 1.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("environments")
    for kind, source in (("environment", ENVIRONMENT), ("tools", TOOLS)):
        (folder / f"{kind}.py").write_text(source, encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", [*KINDS, "tools"])
class TestEnvironments(EnvironmentConformance):
    @pytest.fixture(autouse=True)
    def _of_a_kind(self, kind, folder):
        self.kind, self.file = kind, folder / f"{kind}.py"
        self.full_reward = FULL_REWARD[kind]

    def make(self, split_seed):
        if self.file.exists():
            return make_task(Environment(path=self.file, split_seed=split_seed))
        return make_task(sections("task")[self.kind]())

    def gold_reply(self, example, messages):
        return GOLD[self.kind](example, messages)
