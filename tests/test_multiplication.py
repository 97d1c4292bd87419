"""Multiplication: which factors are asked for, and that held-out pairs are never trained on."""

import re

import pytest

from germline.config import Multiplication
from germline.tasks.arithmetic import MultiplicationTask, factor_pairs


def pairs(task, split):
    return [(one.facts["a"], one.facts["b"]) for one in task.examples(split)]


@pytest.mark.parametrize(("digits", "lowest", "highest"), [(1, 1, 9), (3, 100, 999)])
def test_factors_have_the_digits_asked_for(digits, lowest, highest):
    task = MultiplicationTask(Multiplication(digits=digits))
    factors = {one for split in ("train", "test") for pair in pairs(task, split) for one in pair}
    assert lowest <= min(factors)
    assert max(factors) <= highest
    assert len(factors) == highest - lowest + 1  # every number is asked for


def test_the_prompt_asks_for_the_product_that_is_the_answer():
    for example in MultiplicationTask(Multiplication()).examples("test"):
        asked = re.fullmatch(r"What is (\d+) \* (\d+)\? .+", example.prompt)
        assert asked is not None
        assert int(example.answer) == int(asked[1]) * int(asked[2])


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_no_pair_is_trained_on_and_tested_in_any_order(digits):
    task = MultiplicationTask(Multiplication(digits=digits))
    train, test = ({frozenset(pair) for pair in pairs(task, split)} for split in ("train", "test"))
    assert not train & test
    assert 0.15 < len(test) / (len(train) + len(test)) < 0.25


def test_two_digits_are_asked_in_all_pairs_and_three_in_a_sample():
    assert len(factor_pairs(2, seed=0)) == 90 * 90
    drawn = factor_pairs(3, seed=0)
    assert len({frozenset(pair) for pair in drawn}) == len(drawn) == 2500
    assert drawn != factor_pairs(3, seed=1)
