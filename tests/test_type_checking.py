"""The type checks of the tests: what they refuse, and what they leave alone."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from beartype import beartype
from jaxtyping import Float64, Int64, jaxtyped

from germline import noise
from tests.type_checking import checked

if TYPE_CHECKING:
    from fractions import Fraction

WRONG: Any = "three"


def check(target: Any) -> Any:
    return checked(target, typechecker=beartype)


@check
def cut(
    rows: Float64[np.ndarray, "rows columns"], count: int = 2
) -> Float64[np.ndarray, "{count}"]:
    return rows.ravel()[:3] if rows[0, 0] < 0 else rows.ravel()[:count]


@check
def both(left: Float64[np.ndarray, " n"], right: Int64[np.ndarray, " n"]) -> float:
    return float(left @ right)


@check
def half(number: "Fraction", name: str = "") -> "Fraction":
    return number / 2


@check
@dataclass
class Point:
    x: int


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


@pytest.mark.parametrize("arguments", [{}, {"count": 4}])
def test_an_argument_or_its_default_gives_the_size_of_a_result(arguments):
    assert len(cut(np.ones((2, 3)), **arguments)) == arguments.get("count", 2)
    with refused():
        cut(-np.ones((2, 3)), **arguments)


def test_a_name_known_to_static_type_checkers_only_may_be_anything():
    assert half(3) == 1.5
    assert half.__annotations__ == {"number": "Fraction", "name": str, "return": "Fraction"}
    with refused():
        half(3, name=3)


def test_fields_are_checked_where_init_is_generated():
    assert Point(1).x == 1
    with refused():
        Point(WRONG)
