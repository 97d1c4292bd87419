"""Multiplication: answer a product of two numbers of a given length with the bare number.

The reward is 1 for exactly the product and 0 for any other text: the accuracy that ES projects
report for 3-digit factors. With up to two digits, all pairs of factors are examples; of the many
pairs of longer factors, `DRAWN` are drawn. The split is by unordered pair, so that `12 * 34` and
`34 * 12` are in the same split.

The question is worded like that of `arithmetic` and also asks for the bare number, because a model
without training would explain its answer.
"""

from collections.abc import Mapping, Sequence
from itertools import product

from germline.config import Multiplication
from germline.graders.answer_match import grade_exact, normalized_number
from germline.noise import epoch_permutation
from germline.protocols import Grader
from germline.tasks.splits import seeded_split
from germline.types import Example, Split

DRAWN = 2500
"""Pairs of factors with three digits and more: about 2000 to train and 500 to test."""

ALL_PAIRS_DIGITS = 2
"""Largest number of digits for which every ordered pair of factors is an example."""


class MultiplicationTask:
    """Products whose gold answer is the bare number; see the module."""

    name = "multiplication"
    metric = "exact"
    metric_higher_is_better = True

    def __init__(self, config: Multiplication) -> None:
        self.grader: Grader = grade_exact
        self.rubric: Mapping[str, float] = {"exact": 1.0}
        self.floor: Mapping[str, float] = {"exact": 0.0}
        # Twice the digits of the product, at one token each, include blanks and the end token.
        self.max_new_tokens = config.max_new_tokens or 4 * config.digits + 4
        self.stop = config.stop or ()
        pairs = factor_pairs(config.digits, config.split_seed)
        keys = [(min(pair), max(pair)) for pair in pairs]
        train, test = seeded_split(pairs, keys, config.split_seed, self.name)
        chat = config.sends_chats
        self._examples: dict[Split, tuple[Example, ...]] = {
            "train": tuple(_example(index, *pair, chat=chat) for index, pair in enumerate(train)),
            "test": tuple(_example(index, *pair, chat=chat) for index, pair in enumerate(test)),
        }

    def examples(self, split: Split) -> Sequence[Example]:
        """Return the examples of a split, always the same ones in the same order."""
        return self._examples[split]

    def answer_of(self, text: str, example: Example) -> str | None:
        """Return the number a completion ends with."""
        return normalized_number(text)


def multiplication_question(a: int, b: int) -> str:
    """Write the user message."""
    return f"What is {a} * {b}? Answer with the number only."


def factor_pairs(digits: int, seed: int) -> list[tuple[int, int]]:
    """Return the pairs of factors: all of them, or `DRAWN` pairs.

    Drawn pairs differ as unordered pairs. Within a round every number is the first factor once and
    the second factor once, so all numbers occur about equally often.
    """
    lowest, numbers = 10 ** (digits - 1), 9 * 10 ** (digits - 1)
    if digits <= ALL_PAIRS_DIGITS:
        factors = range(lowest, lowest + numbers)
        return list(product(factors, factors))
    drawn: dict[tuple[int, int], tuple[int, int]] = {}
    round_ = 0
    while len(drawn) < DRAWN:
        firsts = epoch_permutation(seed, "multiplication first factors", round_, numbers)[:DRAWN]
        seconds = epoch_permutation(seed, "multiplication second factors", round_, numbers)[:DRAWN]
        for a, b in zip((lowest + firsts).tolist(), (lowest + seconds).tolist(), strict=True):
            drawn.setdefault((min(a, b), max(a, b)), (a, b))
        round_ += 1
    return list(drawn.values())[:DRAWN]


def _example(index: int, a: int, b: int, *, chat: bool) -> Example:
    return Example(
        index=index,
        prompt=multiplication_question(a, b),
        answer=str(a * b),
        chat=chat,
        facts={"a": a, "b": b},
    )
