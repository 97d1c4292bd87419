"""Reward functions of both signatures: one completion and its row, or lists as in TRL."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from germline.graders.reward_functions import FunctionRubric, call_reward, weighted_functions
from germline.graders.worker_messages import GradeMissingError, InvalidGradeError, PartsFailedError
from germline.types import Example, GermlineError

ROW = {"prompt": "2 + 2?", "answer": "4", "level": 3}
EXAMPLE = Example(0, "2 + 2?", "4", chat=True, facts={"level": 3})


def right(completion, example):
    return completion == example["answer"]


def trl_right(prompts, completions, answer, **columns):
    assert prompts == ["2 + 2?"]
    assert columns == {"level": [3]}
    return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]


def does_not_apply(completions, **_):
    return [None for _ in completions]


async def also_not(completions):
    return [None for _ in completions]


async def later(completion, example):
    await asyncio.sleep(0)
    return completion == example["answer"]


async def cancelled(completion, example):
    task = asyncio.ensure_future(asyncio.sleep(0))
    task.cancel()
    await task


def fails(completion, example):
    raise KeyError("gold")


def rubric_of(weighted, floors=None):
    known = weighted_functions(weighted, "reward")
    weights = {name: weight for name, (_, weight) in known.items()}
    functions = {name: function for name, (function, _) in known.items()}
    return FunctionRubric(functions, weights, {**dict.fromkeys(weights, 0.0), **(floors or {})})


@pytest.mark.parametrize("function", [right, trl_right, later])
def test_a_function_of_either_signature_is_called_with_one_completion(function):
    assert call_reward(function, "4", ROW, "2 + 2?") in (True, 1.0)
    assert call_reward(function, "5", ROW, "2 + 2?") in (False, 0.0)


def test_a_reward_that_does_not_apply_adds_nothing_as_in_trl():
    assert rubric_of([right, does_not_apply])("4", EXAMPLE) == {"right": True, "does_not_apply": 0}


@pytest.mark.parametrize(
    ("weighted", "said"),
    [
        (does_not_apply, r"^does_not_apply\(\) returned None, so nothing rewards this row"),
        ({does_not_apply: 1.0, right: 0.0}, r"^does_not_apply\(\) returned None"),
        ([does_not_apply, also_not], r"^does_not_apply\(\) and also_not\(\) returned None"),
    ],
)
def test_a_row_that_no_reward_applies_to_is_missing(weighted, said):
    with pytest.raises(GradeMissingError, match=said):
        rubric_of(weighted)("4", EXAMPLE)
    beside_a_scorer = replace(rubric_of(weighted), is_only_reward=False)
    assert beside_a_scorer("5", EXAMPLE)["does_not_apply"] == 0


def test_a_conversation_is_answered_by_a_message_as_in_trl():
    def reward(prompts, completions):
        assert prompts[0][-1]["role"] == "user"
        return [len(one[0]["content"]) for one in completions]

    row = {"prompt": [{"role": "user", "content": "Hi"}]}
    assert call_reward(reward, "Hello", row, "Hi") == 5


def test_async_functions_run_where_a_loop_runs_already():
    async def in_a_notebook():
        return call_reward(later, "4", ROW, "2 + 2?")

    assert asyncio.run(in_a_notebook()) is True


def test_the_row_has_prompt_and_answer_of_any_task():
    assert rubric_of(lambda completion, example: example == ROW)("4", EXAMPLE) == {"reward": 1.0}


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (fails, r"fails\(\): KeyError: 'gold' \(test_reward_f"),
        (cancelled, r"cancelled\(\): CancelledError"),  # it waits for what was cancelled
    ],
)
def test_a_function_that_raises_leaves_the_others_their_values(broken, said):
    with pytest.raises(PartsFailedError, match=said) as e:
        rubric_of({right: 1.0, broken: 0.5})("4", EXAMPLE)
    assert e.value.values == {"right": 1.0}


@pytest.mark.parametrize("returned", [[1.0, 2.0], [], 1.0, "1", {"a": 1}])
def test_a_list_of_another_length_is_refused(returned):
    with pytest.raises(InvalidGradeError, match="a list with one reward for each completion"):
        call_reward(lambda completions: returned, "4", ROW, "")


def test_a_number_of_another_library_is_a_number():
    assert rubric_of(lambda completion, example: np.float32(0.5))("4", EXAMPLE) == {"reward": 0.5}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (5, "reward: a reward must be a function, found 5"),
        ("exact", "reward: a reward must be a function, found 'exact'"),
        ([], "found no reward function"),
        ([right, 5], "must be a function, found 5"),
        (lambda completion: 1.0, r"\(completion\) must take \(completion, example\)"),
        ([lambda c, e: 1, lambda c, e: 2], r"reward, reward \(a lambda is named reward\): write"),
        ({right: 0}, "every weight is 0"),
        ({right: "1"}, "the weight of right must be a number, found '1'"),
        ({right: float("inf")}, "the weight of right must be a number, found inf"),
        ({right: 10**400}, "the weight of right must be a number, found 1000"),
    ],
)
def test_a_mistake_is_named(given, complaint):
    with pytest.raises(GermlineError, match=complaint):
        weighted_functions(given, "reward")


def test_an_argument_that_only_trl_has_needs_a_default_or_a_field_of_the_row():
    def shorter(completions, completion_ids=((1,),), **_):
        return [-len(ids) for ids in completion_ids]

    assert call_reward(shorter, "4", ROW, "2 + 2?") == -1
    assert call_reward(shorter, "4", {**ROW, "completion_ids": [1, 2]}, "2 + 2?") == -2
