"""Countdown: write an expression that reaches a target from given numbers, each used exactly once.

Reward = 0.1 x format + answer (`germline.graders.countdown`). Rows have the field's format:
{context, numbers, target, solution}, where the context is the whole prompt, without chat tokens,
and ends in `<think>`; a completion continues after it. They come from a file of such rows or are
generated here: three numbers from 1 to 9, targets from 1 to 50.

Generated solutions keep every intermediate result a positive whole number, and are written fully
parenthesised like the field's. Orders of the same numbers are different rows (another prompt), but
the first `TRAIN_ROWS` rows share their numbers and target with no other row, so the field's split
(first 200 train, last 2000 test) never shows the same puzzle on both sides.

Known limits: 19 of the 2200 rows of the field's file have no solution (their gold answer is empty
here), and 15 have one that does not use each number once and so earns no reward.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations_with_replacement, permutations
from pathlib import Path
from typing import TypedDict

from germline.config import Countdown
from germline.graders import countdown as grader
from germline.noise import permutation
from germline.protocols import Grader
from germline.tasks.files import read_json_rows, want
from germline.tasks.splits import seeded_split
from germline.types import Example, GermlineError, Split

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
LARGEST_NUMBER = 9
LARGEST_TARGET = 50
MAX_NEW_TOKENS = 256


class Row(TypedDict):
    """One puzzle in the field's file format; `solution` is None where none is known."""

    context: str
    numbers: list[int]
    target: str
    solution: str | None


class CountdownTask:
    """Reach the target with the numbers given; see the module."""

    name = "countdown"
    metric = "answer"
    metric_higher_is_better = True

    def __init__(self, config: Countdown) -> None:
        self.grader: Grader = grader.grade
        self.rubric: Mapping[str, float] = {"format": 0.1, "answer": 1.0}
        self.floor: Mapping[str, float] = {"format": 0.0, "answer": 0.0}
        self.max_new_tokens = config.max_new_tokens or MAX_NEW_TOKENS
        self.stop = config.stop or ()
        train, test = _split(config)
        chat = bool(config.chat)
        self._examples: dict[Split, tuple[Example, ...]] = {
            "train": tuple(_example(index, row, chat=chat) for index, row in enumerate(train)),
            "test": tuple(_example(index, row, chat=chat) for index, row in enumerate(test)),
        }

    def examples(self, split: Split) -> Sequence[Example]:
        """Return the examples of a split, always the same ones in the same order."""
        return self._examples[split]


def prompt(numbers: Sequence[int], target: str) -> str:
    """Write the field's prompt for one puzzle."""
    return TEMPLATE.format(numbers=" ".join(map(str, numbers)), target=target)


def gold_completion(solution: str) -> str:
    """Write the shortest completion that earns the full reward with this solution."""
    return f" {solution} </think>\n<answer> {solution} </answer>"


def generate_rows(
    seed: int,
    count: int,
    largest_number: int = LARGEST_NUMBER,
    largest_target: int = LARGEST_TARGET,
) -> list[Row]:
    """Draw different solvable puzzles of three numbers, in the field's row format.

    The first `TRAIN_ROWS` rows share (sorted numbers, target) with no other row of the list.

    Raises:
        GermlineError: there are not that many different puzzles.
    """
    puzzles = _puzzles(largest_number, largest_target)
    keys = permutation(seed, "countdown puzzles", 0, len(puzzles))
    rows: list[Row] = []
    for round_, chosen in enumerate([keys, *[keys[TRAIN_ROWS:]] * 5]):
        for key in chosen:
            if len(rows) == count:
                return rows
            numbers, target, solution = puzzles[key]
            orders = sorted(set(permutations(numbers)))
            if round_ < len(orders):
                shuffled = permutation(seed, "countdown order", int(key), len(orders))
                order = orders[shuffled[round_]]
                rows.append(
                    Row(
                        context=prompt(order, str(target)),
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


def _split(config: Countdown) -> tuple[list[Row], list[Row]]:
    if config.path is None:
        rows, place = generate_rows(config.split_seed, TRAIN_ROWS + TEST_ROWS), "countdown"
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


def _read(path: Path) -> list[Row]:
    rows: list[Row] = []
    for place, raw in read_json_rows(path, "task.path"):
        numbers = want(raw, "numbers", list, place)
        target = want(raw, "target", str, place)
        solution = raw.get("solution")
        if not numbers or not all(type(number) is int and number >= 0 for number in numbers):
            raise GermlineError(
                f"{place}: `numbers` must be a list of whole numbers, none negative (no answer "
                f"could use it), found {numbers!r}"
            )
        if not grader.is_target(target):
            raise GermlineError(
                f'{place}: `target` must be a decimal number in quotes, such as "-11" or "27.4", '
                f"found {target!r}"
            )
        if not isinstance(solution, str | None):
            raise GermlineError(f"{place}: `solution` must be text or null, found {solution!r}")
        context = want(raw, "context", str, place)
        rows.append(Row(context=context, numbers=numbers, target=target, solution=solution))
    return rows


def _example(index: int, row: Row, *, chat: bool) -> Example:
    return Example(
        index=index,
        prompt=row["context"],
        answer=gold_completion(row["solution"]) if row["solution"] else "",
        chat=chat,
        facts={"numbers": tuple(row["numbers"]), "target": row["target"]},
    )
