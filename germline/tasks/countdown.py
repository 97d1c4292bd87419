"""Countdown: write an expression that reaches a target from given numbers, each used exactly once.

Reward = 0.1 x format + answer (`germline.graders.countdown`). Rows come from a file in the field's
format or are made by `germline.tasks.countdown_data`; either way the field's split (first 200
train, last 2000 test) never shows a made puzzle on both sides.

Known limits: 19 of the 2200 rows of the field's file have no solution (their gold answer is empty
here), and 15 have a solution that does not use each number once and so earns no reward.
"""

from collections.abc import Mapping
from pathlib import Path

from germline.config import Countdown
from germline.graders import countdown as grader
from germline.protocols import Grader
from germline.tasks.countdown_data import ALONE_ROWS, CountdownRow, field_rows, small_rows
from germline.tasks.row_files import read_rows, row_field
from germline.tasks.splits import SplitTask, seeded_split
from germline.types import Example, GermlineError

TRAIN_ROWS, TEST_ROWS = ALONE_ROWS, 2000
MAX_NEW_TOKENS = 256


class CountdownTask(SplitTask):
    """Reach the target with the numbers given; see the module."""

    name = "countdown"
    metric = "answer"
    metric_higher_is_better = True

    def __init__(self, config: Countdown) -> None:
        self.grader: Grader = grader.grade_countdown
        self.rubric: Mapping[str, float] = {"format": 0.1, "answer": 1.0}
        self.floor: Mapping[str, float] = {"format": 0.0, "answer": 0.0}
        self.max_new_tokens = config.max_new_tokens or MAX_NEW_TOKENS
        self.stop = config.stop or ()
        train, test = _split(config)
        chat = config.sends_chats
        self._examples = {
            "train": tuple(_example(index, row, chat=chat) for index, row in enumerate(train)),
            "test": tuple(_example(index, row, chat=chat) for index, row in enumerate(test)),
        }

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
        numbers = row_field(raw, "numbers", list, place)
        target = row_field(raw, "target", str, place)
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
        context = row_field(raw, "context", str, place)
        rows.append(
            CountdownRow(context=context, numbers=numbers, target=target, solution=solution)
        )
    return rows


def _example(index: int, row: CountdownRow, *, chat: bool) -> Example:
    return Example(
        index=index,
        prompt=row["context"],
        answer=gold_completion(row["solution"]) if row["solution"] else "",
        chat=chat,
        facts={"numbers": tuple(row["numbers"]), "target": row["target"]},
    )
