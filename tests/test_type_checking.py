"""The type checks of the tests: what they refuse, and what they leave alone."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from beartype import beartype
from jaxtyping import Float64, Int64, jaxtyped

from germline import noise
from tests.type_checking import CHECKED_FIRST, THEN_ONE_OF, checked

WRONG: Any = "three"


def check(target: Any) -> Any:
    return checked(target, typechecker=beartype)


@check
def both(left: Float64[np.ndarray, " n"], right: Int64[np.ndarray, " n"]) -> float:
    return float(left @ right)


def refused():
    return pytest.raises(Exception, match=r"violates type hint|Type-check error")


def test_functions_of_germline_are_checked(pytestconfig):
    if not pytestconfig.getoption("jaxtyping_packages"):
        pytest.skip("without --jaxtyping-packages, which `make check` gives")
    assert jaxtyped is checked
    assert noise.weight_noise(0, 0, 0, "a", 3).shape == (3,)
    with refused():
        noise.weight_noise(0, 0, 0, "a", WRONG)


def test_an_axis_has_one_size_in_a_call_and_any_in_the_next():
    assert both(np.ones(2), np.ones(2, np.int64)) == 2
    assert both(np.ones(3), np.ones(3, np.int64)) == 3
    with refused():
        both(np.ones(2), np.ones(3, np.int64))
    with refused():
        both(np.ones(2), np.ones(2))


def test_a_function_that_is_called_often_is_checked_in_some_calls():
    @check
    def length(rows: Float64[np.ndarray, " n"]) -> int:
        return len(rows)

    passed = 0
    for _ in range(CHECKED_FIRST + 2 * THEN_ONE_OF):
        with suppress(Exception):
            passed += length(WRONG) > 0
    assert passed == 2 * (THEN_ONE_OF - 1)
