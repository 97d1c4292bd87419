"""Zeroth-order GRPO on episodes: the center plays, and members score all turns of the model."""

import json

import pytest

import germline
from germline.config import load_config
from germline.methods.method import check_task
from germline.methods.zo_grpo import ZerothOrderGrpoMethod
from germline.run import build_run_parts
from germline.tasks import make_task
from germline.types import GermlineError, Update
from tests.toy_runs import finish, journal, settings, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")

SCORED = ("method=zo_grpo", "strategy.learning_rate=auto", "method.rows_per_member=5")

ENVIRONMENT = """
class Vowels:
    def reset(self, word: str, seed: int) -> str:
        self.said = ""
        return f"Say {word}."

    def step(self, reply: str) -> tuple[str, bool, float]:
        self.said += reply
        done = len(self.said) > 8
        return "More!", done, sum(one in "aeiou" for one in reply) / 4

environment = Vowels
train = [{"prompt": "Say it.", "word": f"word {i}"} for i in range(6)]
test = train[:2]
"""


def episodes(folder):
    """Return the overrides of a task of episodes whose rewards differ."""
    path = folder / "vowels.py"
    path.write_text(ENVIRONMENT, encoding="utf-8")
    task = {"kind": "environment", "path": str(path), "max_new_tokens": 4, "max_turns": 3}
    return (*SCORED, f"task={json.dumps(task)}", "task.temperature=1")


def test_all_turns_of_the_center_are_scored(tmp_path):
    with build_run_parts(settings(*episodes(tmp_path))) as parts:
        population = parts.method.ask(0)
        evaluated = parts.method.evaluate(
            parts.fleet, population, parts.batch(0), parts.decoding_of(0)
        )
        learned = parts.method.learn(population, evaluated)
        method = parts.method
        assert isinstance(method, ZerothOrderGrpoMethod)
        assert method.sampled is not None
        groups, _ = method._drawn(method.sampled.rows, population)
        rows = {row.number: row for group in groups for row, _ in group}.values()
        turns = [text for row in rows for text in row.texts]
    assert len(turns) > len(rows) > 0
    samples, examples = evaluated.rollouts, evaluated.rollouts.rewards.shape
    places = [divmod(row.number, examples[0]) for row in rows]
    written = [samples.rollouts[one * examples[1] + place] for place, one in places]
    tokens = sum(len(rollout.completion.tokens) for rollout in written)
    assert learned.metrics["tokens_scored"] == tokens * (1 + len(population))
    assert isinstance(learned.update, Update)
    assert any(learned.update.coefficients)


def test_a_run_of_episodes_resumes_to_the_same_bits(tmp_path):
    ours = episodes(tmp_path)
    whole = finish(germline.train(settings(*ours), tmp_path / "whole"))
    part = stopped_after(germline.train(settings(*ours), tmp_path / "part"), 1)
    finish(germline.resume(part))
    assert journal(part) == journal(whole)


def test_environments_that_ask_for_replies_themselves_are_refused(monkeypatch):
    config = load_config({"method": "zo_grpo", "task": "wordle"})
    task = make_task(config.task)
    check_task(config, task)
    monkeypatch.setattr(type(task), "asks_endpoint", True, raising=False)
    with pytest.raises(GermlineError, match=r"method\.kind=zo_grpo scores conversations"):
        check_task(config, task)
