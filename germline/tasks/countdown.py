"""Countdown: write an expression that reaches a target from given numbers, each used exactly once.

Reward = 0.1 x format + answer (`germline.graders.countdown`). Rows come from a file in the field's
format, {context, numbers, target, solution}, or are made here: small ones for the nano model, and
ones of the field's size. Either way the field's split (first 200 train, last 2000 test) never shows
a made puzzle on both sides. The context is the whole prompt, without chat tokens, and ends in
`<think>`; a completion continues after it. Solutions keep every intermediate result a positive
whole number, and are written fully parenthesised like the field's.

Known limits: 19 of the 2200 rows of the field's file have no solution (their gold answer is empty
here), and 15 have a solution that does not use each number once and so earns no reward.
"""

from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import combinations_with_replacement, permutations
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from germline.config import Countdown
from germline.errors import shown
from germline.graders import countdown as grader
from germline.noise import epoch_permutation, sampling_uniforms
from germline.tasks.row_files import read_rows
from germline.tasks.splits import SplitTask, seeded_split
from germline.types import Example, GermlineError

MAX_NEW_TOKENS = 256

TEMPLATE = (
    "You are a helpful assistant. You first think about the reasoning process in your mind and "
    "then provide the user with the answer.Using the numbers [{numbers}], create an equation that "
    "equals {target}. You can use basic arithmetic operations (+, -, *, /) and each number can "
    "only be used once. Show your work in <think> </think> tags. And return the final answer in "
    "<answer> </answer> tags, for example <answer> (1 + 2) / 3 </answer>."
    "Let me solve this step by step.\n<think>"
)
"""The field's prompt, missing spaces included; its columns of two-digit numbers are not kept."""

TRAIN_ROWS, TEST_ROWS = 200, 2000
"""As many first rows as are trained on share their numbers and target with no other row."""

LARGEST_NUMBER = 9
LARGEST_TARGET = 50

FIELD_NUMBERS = (1, 99)
FIELD_TARGETS = (10, 99)
"""Of the 2200 rows of the field's file, 2121 have such targets."""

_CHOICES = 16
"""Uniforms that draw one puzzle: its size, four numbers, and three choices for each of 3 signs."""


class CountdownRow(TypedDict):
    """One puzzle in the field's file format; `solution` is None where none is known.

    No answer could use a number below 0. A target is a decimal number, such as "-11" or "27.4".
    """

    context: Annotated[str, Field(min_length=1)]
    numbers: Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Field(min_length=1)]
    target: Annotated[str, Field(pattern=grader.TARGET)]
    solution: str | None


_ROW = TypeAdapter(CountdownRow)


class CountdownTask(SplitTask):
    """Reach the target with the numbers given; see the module."""

    def __init__(self, config: Countdown) -> None:
        super().__init__(
            config,
            grader.grade_countdown,
            rubric={"format": 0.1, "answer": 1.0},
            floor={"format": 0.0, "answer": 0.0},
            max_new_tokens=MAX_NEW_TOKENS,
        )
        self._examples = self.by_split(_split(config), partial(_example, chat=config.sends_chats))

    def answer_of(self, text: str, example: Example) -> str | None:
        """Return the value of an answer if it uses the given numbers."""
        return grader.answer_value(text, example)


def gold_completion(solution: str) -> str:
    """Write the shortest completion that earns the full reward with this solution."""
    return f" {solution} </think>\n<answer> {solution} </answer>"


def _split(config: Countdown) -> tuple[list[CountdownRow], list[CountdownRow]]:
    if config.path is None:
        make = field_rows if config.puzzles == "field" else small_rows
        rows, place = make(config.split_seed, TRAIN_ROWS + TEST_ROWS), "countdown"
    else:
        rows, place = _read(config.path), str(config.path)
    if config.split == "seeded":
        keys = [(tuple(sorted(row["numbers"])), row["target"]) for row in rows]
        return seeded_split(rows, keys, config.split_seed, place)
    if len(rows) < TRAIN_ROWS + TEST_ROWS:
        raise GermlineError(
            f"{place}: task.split=field takes the first {TRAIN_ROWS} rows to train and the last "
            f"{TEST_ROWS} to test, but there are only {len(rows)} rows: use task.split=seeded"
        )
    return rows[:TRAIN_ROWS], rows[-TEST_ROWS:]


def _read(path: Path) -> list[CountdownRow]:
    rows: list[CountdownRow] = []
    for place, raw in read_rows(path, "task.path"):
        try:
            rows.append(_ROW.validate_python({"solution": None, **raw}))
        except ValidationError as error:
            first = error.errors()[0]
            raise GermlineError(
                f"{place}: the field `{first['loc'][0]}`: {first['msg']}, found "
                f"{shown(first['input'])}"
            ) from None
    return rows


def _example(index: int, row: CountdownRow, *, chat: bool) -> Example:
    return Example(
        index=index,
        prompt=row["context"],
        answer=gold_completion(row["solution"]) if row["solution"] else "",
        chat=chat,
        facts={"numbers": tuple(row["numbers"]), "target": row["target"]},
    )


def countdown_prompt(numbers: Sequence[int], target: str) -> str:
    """Write the field's prompt for one puzzle."""
    return TEMPLATE.format(numbers=" ".join(map(str, numbers)), target=target)


def _row(numbers: list[int], target: int, solution: str) -> CountdownRow:
    prompt = countdown_prompt(numbers, str(target))
    return CountdownRow(context=prompt, numbers=numbers, target=str(target), solution=solution)


def small_rows(seed: int, count: int) -> list[CountdownRow]:
    """Draw different solvable puzzles of three numbers, in the field's row format.

    The first `TRAIN_ROWS` rows share (sorted numbers, target) with no other row of the list.
    """
    puzzles = _puzzles()
    keys = epoch_permutation(seed, "countdown puzzles", 0, len(puzzles))
    rows: list[CountdownRow] = []
    for round_, chosen in enumerate([keys, *[keys[TRAIN_ROWS:]] * 5]):
        for key in chosen:
            if len(rows) == count:
                return rows
            numbers, target, solution = puzzles[key]
            orders = sorted(set(permutations(numbers)))
            if round_ < len(orders):
                shuffled = epoch_permutation(seed, "countdown order", int(key), len(orders))
                order = orders[shuffled[round_]]
                rows.append(_row(list(order), target, solution))
    return rows


@cache
def _puzzles() -> list[tuple[tuple[int, ...], int, str]]:
    """List every (sorted numbers, target) that can be solved, with its first solution, in order."""
    found: dict[tuple[tuple[int, ...], int], str] = {}
    for numbers in combinations_with_replacement(range(1, LARGEST_NUMBER + 1), 3):
        for value, text in _solutions(numbers):
            if 1 <= value <= LARGEST_TARGET:
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
            found[row] = _row(*drawn)
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
