"""Findings in the rows of completions: rewards that differ for the same answer, and cut answers."""

import pytest

from germline.config import load_config
from germline.report.findings import Recorded, find

CONFIG = load_config({"generations": 10})


def only(rollouts):
    (found,) = find(Recorded(CONFIG, rollouts=rollouts))
    return found


def row(member=0, reward=0.0, generation=2, **changes):
    """Make up a row of rollouts.jsonl."""
    same = {"example": 7, "completion": "4", "tokens": 2, "finish": "eos", "failure": None}
    return {"generation": generation, "member": member, "reward": reward, **same, **changes}


def test_the_same_answer_with_two_rewards_is_found():
    found = only([row(), row(1, 0.25)])
    assert found.code == "random_reward"
    assert "generation 2 members 0 and 1" in found.sentence
    assert "earned 0 and 0.25" in found.sentence


@pytest.mark.parametrize(
    "other",
    [
        row(1),
        row(1, 0.25, generation=3),
        row(1, 0.25, example=8),
        row(1, 0.25, completion="5"),
        row(1, 0.25, failure="timeout"),
        row(1, 0.25, turns=[]),
    ],
)
def test_a_row_that_may_earn_another_reward_is_not_compared(other):
    assert find(Recorded(CONFIG, rollouts=[row(), other])) == []


@pytest.mark.parametrize(
    "task", [{"kl_coef": 0.1}, {"scorers": {"long": {"kind": "length", "start": 0, "end": 8}}}]
)
def test_rewards_that_depend_on_more_than_the_text_are_not_compared(task):
    config = load_config({"task": {"kind": "conciseness", **task}})
    assert find(Recorded(config, rollouts=[row(), row(1, 0.25)])) == []


def test_completions_that_are_cut_are_a_note():
    found = only([row(generation=1), row(finish="length"), row(1)])
    assert (found.code, found.level, found.values["share"]) == ("truncated", "note", 0.5)
    assert "task.max_new_tokens" in found.sentence
