"""Generate countdown puzzles: small ones for the nano model, and ones of the field's size.

Rows have the field's format, {context, numbers, target, solution}. The context is the whole prompt,
without chat tokens, and ends in `<think>`; a completion continues after it. Solutions keep every
intermediate result a positive whole number, and are written fully parenthesised like the field's.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations_with_replacement, permutations
from typing import TypedDict

import numpy as np

from germline.noise import epoch_permutation, sampling_uniforms
from germline.types import GermlineError

TEMPLATE = (
    "You are a helpful assistant. You first think about the reasoning process in your mind and "
    "then provide the user with the answer.Using the numbers [{numbers}], create an equation that "
    "equals {target}. You can use basic arithmetic operations (+, -, *, /) and each number can "
    "only be used once. Show your work in <think> </think> tags. And return the final answer in "
    "<answer> </answer> tags, for example <answer> (1 + 2) / 3 </answer>."
    "Let me solve this step by step.\n<think>"
)
"""The field's prompt, missing spaces included; its columns of two-digit numbers are not kept."""

ALONE_ROWS = 200
"""As many first rows share their numbers and target with no other row: the field trains on them."""

LARGEST_NUMBER = 9
LARGEST_TARGET = 50

FIELD_NUMBERS = (1, 99)
FIELD_TARGETS = (10, 99)
"""Of the 2200 rows of the field's file, 2121 have such targets."""

_CHOICES = 16
"""Uniforms that draw one puzzle: its size, four numbers, and three choices for each of 3 signs."""


class CountdownRow(TypedDict):
    """One puzzle in the field's file format; `solution` is None where none is known."""

    context: str
    numbers: list[int]
    target: str
    solution: str | None


def countdown_prompt(numbers: Sequence[int], target: str) -> str:
    """Write the field's prompt for one puzzle."""
    return TEMPLATE.format(numbers=" ".join(map(str, numbers)), target=target)


def small_rows(
    seed: int,
    count: int,
    largest_number: int = LARGEST_NUMBER,
    largest_target: int = LARGEST_TARGET,
) -> list[CountdownRow]:
    """Draw different solvable puzzles of three numbers, in the field's row format.

    The first `ALONE_ROWS` rows share (sorted numbers, target) with no other row of the list.
    """
    puzzles = _puzzles(largest_number, largest_target)
    keys = epoch_permutation(seed, "countdown puzzles", 0, len(puzzles))
    rows: list[CountdownRow] = []
    for round_, chosen in enumerate([keys, *[keys[ALONE_ROWS:]] * 5]):
        for key in chosen:
            if len(rows) == count:
                return rows
            numbers, target, solution = puzzles[key]
            orders = sorted(set(permutations(numbers)))
            if round_ < len(orders):
                shuffled = epoch_permutation(seed, "countdown order", int(key), len(orders))
                order = orders[shuffled[round_]]
                rows.append(
                    CountdownRow(
                        context=countdown_prompt(order, str(target)),
                        numbers=list(order),
                        target=str(target),
                        solution=solution,
                    )
                )
    if len(rows) < count:
        raise GermlineError(
            f"countdown: {count} different rows were asked for, but 3 numbers from 1 to "
            f"{largest_number} with targets up to {largest_target} give {len(rows)}: ask for fewer "
            "or widen the ranges"
        )
    return rows


@cache
def _puzzles(largest_number: int, largest_target: int) -> list[tuple[tuple[int, ...], int, str]]:
    """List every (sorted numbers, target) that can be solved, with its first solution, in order."""
    found: dict[tuple[tuple[int, ...], int], str] = {}
    for numbers in combinations_with_replacement(range(1, largest_number + 1), 3):
        for value, text in _solutions(numbers):
            if 1 <= value <= largest_target:
                found.setdefault((numbers, value), text)
    return [(numbers, target, found[numbers, target]) for numbers, target in sorted(found)]


def _solutions(numbers: tuple[int, ...]) -> Iterator[tuple[int, str]]:
    """Yield (value, expression), the easier to read first: two numbers in the inner brackets."""
    orders = sorted(set(permutations(numbers)), reverse=True)
    inner = [
        ((value, f"({a} {sign} {b})"), c) for a, b, c in orders for sign, value in _combine(a, b)
    ]
    for (value, text), c in inner:
        yield from ((result, f"({text} {sign} {c})") for sign, result in _combine(value, c))
    for (value, text), c in inner:
        yield from ((result, f"({c} {sign} {text})") for sign, result in _combine(c, value))


def _combine(a: int, b: int) -> Iterator[tuple[str, int]]:
    yield "+", a + b
    if a > b:
        yield "-", a - b
    yield "*", a * b
    if a % b == 0:
        yield "/", a // b


def field_rows(seed: int, rows: int) -> list[CountdownRow]:
    """Draw different solvable puzzles of three or four numbers from 1 to 99, targets 10 to 99.

    A row is drawn as its solution: numbers, signs and brackets at random, drawn again until every
    step and the result are whole, positive and in range.
    """
    found: dict[int, CountdownRow] = {}
    taken: set[tuple[tuple[int, ...], int]] = set()
    attempt = 0
    while missing := [row for row in range(rows) if row not in found]:
        sampling_noises = sampling_uniforms(seed, attempt, "countdown field", missing, _CHOICES)
        for row, sampling_noise in zip(missing, sampling_noises, strict=True):
            drawn = _draw(sampling_noise)
            if drawn is None or (key := (tuple(sorted(drawn[0])), drawn[1])) in taken:
                continue
            taken.add(key)
            numbers, target, solution = drawn
            text = str(target)
            found[row] = CountdownRow(
                context=countdown_prompt(numbers, text),
                numbers=numbers,
                target=text,
                solution=solution,
            )
        attempt += 1
    return [found[row] for row in range(rows)]


def _draw(sampling_noise: np.ndarray) -> tuple[list[int], int, str] | None:
    """Join numbers by random signs until one value is left; None where that leads nowhere."""
    low, high = FIELD_NUMBERS
    size = 3 + int(sampling_noise[0] * 2)
    numbers = [low + int(one * (high - low + 1)) for one in sampling_noise[1 : 1 + size]]
    parts = [(number, str(number)) for number in numbers]
    choices = iter(sampling_noise[1 + size :])
    while len(parts) > 1:
        a, text_a = parts.pop(int(next(choices) * len(parts)))
        b, text_b = parts.pop(int(next(choices) * len(parts)))
        possible = [(sign, value) for sign, value in _combine(a, b) if value > 0]
        sign, value = possible[int(next(choices) * len(possible))]
        parts.append((value, f"({text_a} {sign} {text_b})"))
    value, solution = parts[0]
    return (numbers, value, solution) if FIELD_TARGETS[0] <= value <= FIELD_TARGETS[1] else None
