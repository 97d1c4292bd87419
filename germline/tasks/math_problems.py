r"""Mathematics problems from a file or a dataset: GSM8K, and problems with boxed answers.

A row of GSM8K has `question` and `answer`, whose last line is `#### 18`. A row of MATH has
`problem`, and `answer` or a `solution` with \boxed{...}; `level` is `Level 3` or 3. `task.columns`
maps other names. Two rubric parts are reported, `strict` and `lenient`; `task.reading` says which
one is rewarded.
"""

import re
from collections.abc import Mapping

from germline.config.row_tasks import Math, MathProblems
from germline.graders.builtin_rewards import normalize_answer
from germline.graders.math_match import (
    Marker,
    MathGrader,
    boxed_answer,
    lenient_answer,
    strict_answer,
)
from germline.graders.numbers import parse_number, without_thousands
from germline.tasks.row_examples import Row, gold_answers, rows_to_examples, with_columns
from germline.tasks.row_files import (
    GivenRows,
    PlacedRow,
    field_value,
    fields_found,
    load_rows,
    row_field,
)
from germline.tasks.splits import SplitTask
from germline.types import Example, GermlineError

_ANNOTATION = re.compile(r"<<[^<>]*>>")
_DIGITS = re.compile(r"[0-9]+")


class MathProblemsTask(SplitTask):
    """Problems that are graded by a strict and a lenient reading; see the module."""

    marker: Marker
    longest = 512

    def __init__(self, config: MathProblems, rows: GivenRows | None = None) -> None:
        super().__init__(
            config,
            MathGrader(self.marker),
            rubric={part: float(part == config.reading) for part in ("strict", "lenient")},
            floor={"strict": 0.0, "lenient": 0.0},
            max_new_tokens=self.longest,
        )
        self._has_functions = bool(config.reward_functions)
        self._examples, self.digest = rows_to_examples(
            rows or load_rows(config), config, self._gold_and_facts
        )

    def gold(self, row: Row) -> tuple[tuple[str, ...], str]:
        """Return the gold answers of a row, any of which is right, and a completion with one."""
        raise NotImplementedError

    def answer_of(self, text: str, example: Example) -> str | None:
        """Return the answer of a completion, which the strict reading finds, or the lenient one."""
        answer = strict_answer(text, self.marker) or lenient_answer(text)
        return None if answer is None else normalize_answer(answer)

    def _gold_and_facts(self, row: Row) -> tuple[str, Mapping[str, object]]:
        golds, completion = self.gold(row)
        facts = row.fields if self._has_functions else {}
        return completion, {**facts, "gold": golds[0] if len(golds) == 1 else golds}


class Gsm8kTask(MathProblemsTask):
    """Word problems whose answer is the number after `####`."""

    marker = "hashes"

    def gold(self, row: Row) -> tuple[tuple[str, ...], str]:
        """Return the number after `####`, and the solution without calculator annotations."""
        solution = _ANNOTATION.sub("", row_field(row.fields, "answer", str, row.place))
        number = without_thousands(strict_answer(solution, "hashes") or "")
        if parse_number(number) is None:
            raise GermlineError(
                f"{row.place}: the field `answer` must end with a line such as '#### 18', found "
                f"{solution[-80:]!r}"
            )
        return (number,), solution


class MathTask(MathProblemsTask):
    r"""Problems whose answer is in \boxed{...}, of some levels of difficulty."""

    marker = "boxed"
    longest = 1024

    def __init__(self, config: Math) -> None:
        rows = load_rows(config)
        if config.levels:
            rows = GivenRows(_of_levels(rows.train, config), _of_levels(rows.test, config))
        super().__init__(config, rows)

    def gold(self, row: Row) -> tuple[tuple[str, ...], str]:
        r"""Return the field `answer`, or what \boxed{...} holds in the `solution`."""
        solution = str(field_value(row.fields, "solution") or "")
        boxed = boxed_answer(solution)
        golds = gold_answers(row, "answer")
        if not any(golds):
            golds = () if boxed is None else (boxed.strip(),)
        if not any(golds):
            raise GermlineError(
                f"{row.place}: a problem needs a field `answer`, or a `solution` with "
                f"\\boxed{{...}}; {fields_found(row.fields)}"
            )
        return golds, solution if boxed == golds[0] else f"\\boxed{{{golds[0]}}}"


def _of_levels(rows: list[PlacedRow], config: Math) -> list[PlacedRow]:
    named = with_columns(rows, config.columns)
    kept = [one for one, row in zip(rows, named, strict=True) if _level(*row) in config.levels]
    if rows and not kept:
        raise GermlineError(
            f"task.levels={list(config.levels)}: no problem of {config.path} has one of them"
        )
    return kept


def _level(place: str, row: Mapping[str, object]) -> int:
    found = _DIGITS.search(str(row.get("level", "")))
    if found is None:
        raise GermlineError(
            f"{place}: task.levels needs a field `level` such as 'Level 3', found "
            f"{row.get('level')!r}: name its column in task.columns"
        )
    return int(found.group())
