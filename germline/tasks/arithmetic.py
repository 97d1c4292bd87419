"""Arithmetic: answer a short sum, difference or product with the bare number.

The reward is 1 for exactly the number and 0 for any other text, such as a correct sentence. The
task has all pairs of operands; the split is by unordered pair for all operators, so that `3 + 5`,
`5 + 3` and `5 - 3` are in the same split.
"""

from collections.abc import Mapping, Sequence
from itertools import product

from germline.config import Arithmetic
from germline.graders.answer_match import grade_exact, normalized_number
from germline.protocols import Grader
from germline.tasks.splits import seeded_split
from germline.types import Example, Split

LARGEST_OPERAND = {"+": 20, "-": 20, "*": 9}
"""Operands go from 0 to this; differences may be negative."""

MAX_NEW_TOKENS = 32


class ArithmeticTask:
    """Short sums whose gold answer is the bare number; see the module."""

    name = "arithmetic"
    metric = "exact"
    metric_higher_is_better = True

    def __init__(self, config: Arithmetic) -> None:
        self.grader: Grader = grade_exact
        self.rubric: Mapping[str, float] = {"exact": 1.0}
        self.floor: Mapping[str, float] = {"exact": 0.0}
        self.max_new_tokens = config.max_new_tokens or MAX_NEW_TOKENS
        self.stop = config.stop or ()
        sums = [
            (a, sign, b)
            for sign, largest in LARGEST_OPERAND.items()
            for a, b in product(range(largest + 1), repeat=2)
        ]
        pairs = [(min(a, b), max(a, b)) for a, _, b in sums]
        train, test = seeded_split(sums, pairs, config.split_seed, self.name)
        chat = config.sends_chats
        self._examples: dict[Split, tuple[Example, ...]] = {
            "train": tuple(_example(index, *item, chat=chat) for index, item in enumerate(train)),
            "test": tuple(_example(index, *item, chat=chat) for index, item in enumerate(test)),
        }

    def examples(self, split: Split) -> Sequence[Example]:
        """Return the examples of a split, always the same ones in the same order."""
        return self._examples[split]

    def answer_of(self, text: str, example: Example) -> str | None:
        """Return the number a completion ends with."""
        return normalized_number(text)


def arithmetic_question(a: int, sign: str, b: int) -> str:
    """Write the user message."""
    return f"What is {a} {sign} {b}?"


def arithmetic_answer(a: int, sign: str, b: int) -> int:
    """Compute the gold answer."""
    return {"+": a + b, "-": a - b, "*": a * b}[sign]


def _example(index: int, a: int, sign: str, b: int, *, chat: bool) -> Example:
    return Example(
        index=index,
        prompt=arithmetic_question(a, sign, b),
        answer=str(arithmetic_answer(a, sign, b)),
        chat=chat,
        facts={"a": a, "sign": sign, "b": b},
    )
