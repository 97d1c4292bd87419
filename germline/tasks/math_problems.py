r"""Mathematics problems from a file or a dataset: GSM8K, and problems with boxed answers.

A row of GSM8K has `question` and `answer`, whose last line is `#### 18`. A row of MATH has
`problem`, and `answer` or a `solution` with \boxed{...}; `level` is `Level 3` or 3. `task.columns`
maps other names. Two rubric parts are reported, `strict` and `lenient`; `task.reading` says which
one is rewarded.
"""

import re
from collections.abc import Mapping, Sequence

from germline.config.math_tasks import Gsm8k, Math, MathProblems
from germline.graders.answer_match import normalize_answer
from germline.graders.math_match import (
    Marker,
    MathGrader,
    boxed_answer,
    lenient_answer,
    strict_answer,
)
from germline.protocols import Grader
from germline.tasks import dataset_rows
from germline.tasks.file_or_dataset import load_file_or_dataset
from germline.tasks.json_files import PlacedRow, row_field
from germline.types import Example, GermlineError, Split

_ANNOTATION = re.compile(r"<<[^<>]*>>")
_DIGITS = re.compile(r"[0-9]+")


class MathProblemsTask:
    """Problems that are graded by a strict and a lenient reading; see the module."""

    marker: Marker
    longest = 512

    def __init__(self, config: MathProblems) -> None:
        self.name = config.title
        self.metric: str = config.reading
        self.metric_higher_is_better = True
        self.rubric: Mapping[str, float] = {
            part: float(part == config.reading) for part in ("strict", "lenient")
        }
        self.floor: Mapping[str, float] = {"strict": 0.0, "lenient": 0.0}
        self.grader: Grader = MathGrader(self.marker)
        self.max_new_tokens = config.max_new_tokens or self.longest
        self.stop = config.stop or ()
        train, test = self.load(config)
        self.digest = dataset_rows.task_digest(b"", train, test)
        dataset_rows.check_unchanged(config, self.digest)
        sides = dataset_rows.split_rows(
            train, test, config.template, config.split_seed, config.place
        )
        self._examples: dict[Split, tuple[Example, ...]] = {
            split: self._made(items, config) for split, items in sides.items()
        }

    def load(self, config: MathProblems) -> tuple[list[PlacedRow], list[PlacedRow] | None]:
        """Return the rows to train on, and held-out ones where they are named.

        Raises:
            GermlineError: the rows cannot be read.
        """
        return load_file_or_dataset(config)

    def gold(self, row: Mapping[str, object], place: str) -> tuple[str, str]:
        """Return the gold answer of a row, and a completion that gives it.

        Raises:
            GermlineError: the row has no gold answer.
        """
        raise NotImplementedError

    def examples(self, split: Split) -> Sequence[Example]:
        """Return the examples of a split, always the same ones in the same order."""
        return self._examples[split]

    def answer_of(self, text: str, example: Example) -> str | None:
        """Return the answer of a completion, which the strict reading finds, or the lenient one."""
        answer = strict_answer(text, self.marker) or lenient_answer(text)
        return None if answer is None else normalize_answer(answer)

    def _made(
        self, items: Sequence[tuple[str, PlacedRow]], config: MathProblems
    ) -> tuple[Example, ...]:
        golden = [self.gold(row, place) for _, (place, row) in items]
        facts = [
            {
                **(row if config.reward_functions else {}),
                **dataset_rows.sample_weight(row, config.sample_weight, place),
                "gold": gold,
            }
            for (_, (place, row)), (gold, _) in zip(items, golden, strict=True)
        ]
        return dataset_rows.make_examples(
            items,
            [completion for _, completion in golden],
            facts,
            chat=config.sends_chats,
            template=config.template,
        )


class Gsm8kTask(MathProblemsTask):
    """Word problems whose answer is the number after `####`."""

    marker = "hashes"

    def __init__(self, config: Gsm8k) -> None:
        super().__init__(config)

    def gold(self, row: Mapping[str, object], place: str) -> tuple[str, str]:
        """Return the number after `####`, and the solution without calculator annotations."""
        solution = _ANNOTATION.sub("", row_field(row, "answer", str, place))
        number = strict_answer(solution, "hashes")
        if number is None:
            raise GermlineError(
                f"{place}: the field `answer` must end with a line such as '#### 18', found "
                f"{solution[-80:]!r}"
            )
        return number.replace(",", ""), solution


class MathTask(MathProblemsTask):
    r"""Problems whose answer is in \boxed{...}, of some levels of difficulty."""

    marker = "boxed"
    longest = 1024

    def __init__(self, config: Math) -> None:
        self._levels = config.levels
        super().__init__(config)

    def load(self, config: MathProblems) -> tuple[list[PlacedRow], list[PlacedRow] | None]:
        """Return the rows of the levels that are asked for.

        Raises:
            GermlineError: the rows cannot be read, or none has these levels.
        """
        train, test = super().load(config)
        return self._of_levels(train, config), test and self._of_levels(test, config)

    def gold(self, row: Mapping[str, object], place: str) -> tuple[str, str]:
        r"""Return the field `answer`, or what \boxed{...} holds in the `solution`."""
        solution = str(row.get("solution", ""))
        boxed = boxed_answer(solution)
        gold = str(row.get("answer", "") or boxed or "").strip()
        if not gold:
            raise GermlineError(
                f"{place}: a problem needs a field `answer`, or a `solution` with \\boxed{{...}}; "
                f"fields found: {', '.join(f'`{name}`' for name in row)}"
            )
        return gold, solution if boxed == gold else f"\\boxed{{{gold}}}"

    def _of_levels(self, rows: list[PlacedRow], config: MathProblems) -> list[PlacedRow]:
        if not self._levels:
            return rows
        kept = [(place, row) for place, row in rows if _level(row, place) in self._levels]
        if not kept:
            raise GermlineError(
                f"task.levels={list(self._levels)}: no problem of {config.path} has one of them"
            )
        return kept


def _level(row: Mapping[str, object], place: str) -> int:
    found = _DIGITS.search(str(row.get("level", "")))
    if found is None:
        raise GermlineError(
            f"{place}: task.levels needs a field `level` such as 'Level 3', found "
            f"{row.get('level')!r}: name its column in task.columns, or drop task.levels"
        )
    return int(found.group())
