"""A calculator with two tools, in the shape of TRL's environments: public methods are the tools.

The part `correct` is 1 if the last result of a tool is the value of the expression.
"""

from collections.abc import Mapping

PARTS: Mapping[str, float] = {"correct": 1.0}
"""Parts of the reward and their weights."""


class Calculator:
    """One expression a * b + c, to be computed with the tools."""

    def __init__(self) -> None:
        self._value = 0
        self._result: int | None = None

    def reset(self, a: int, b: int, c: int) -> None:
        """Begin; the prompt asks for a * b + c."""
        self._value = a * b + c

    def add(self, a: int, b: int) -> int:
        """Add two whole numbers.

        Args:
            a: the first number.
            b: the second number.
        """
        return self._keep(_number(a) + _number(b))

    def multiply(self, a: int, b: int) -> int:
        """Multiply two whole numbers.

        Args:
            a: the first number.
            b: the second number.
        """
        return self._keep(_number(a) * _number(b))

    def get_reward(self) -> dict[str, float]:
        """Return the parts of the reward."""
        return {"correct": float(self._result == self._value)}

    def _keep(self, result: int) -> int:
        self._result = result
        return result


def expression_prompt(a: int, b: int, c: int) -> str:
    """Return the prompt of an expression."""
    return f"What is {a} * {b} + {c}? Compute it with the tools, then write the answer."


def _number(value: int) -> int:
    if abs(value) >= 10**9:
        raise ValueError(f"a whole number below 1000000000 is needed, found {value!r:.40}")
    return value
