"""Multiplication: answer a product of two numbers of so many digits with the bare number.

Reward 1 for exactly the product, 0 for anything else: the accuracy that ES projects report for
3-digit factors. Numbers of up to two digits are asked for in all pairs; of the many pairs of longer
ones `DRAWN` are drawn. The split goes by unordered pair, so that `12 * 34` and `34 * 12` fall on
the same side.

The question is worded like that of `arithmetic`, with the wanted form said, as a model that was
never rewarded for it explains its answer.
"""

from collections.abc import Mapping, Sequence
from itertools import product

from germline.config import Multiplication
from germline.graders import exact_match, numeric_match
from germline.noise import epoch_permutation
from germline.protocols import Grader
from germline.tasks.splits import seeded_split
from germline.types import Example, Split

DRAWN = 2500
"""Pairs of factors of three digits and more: 2000 to train and 500 to test, or about so."""

ALL_PAIRS_DIGITS = 2
"""Up to so many digits every ordered pair of factors is an example."""


class MultiplicationTask:
    """Products with the bare number as the wanted answer; see the module."""

    name = "multiplication"
    metric = "exact"
    metric_higher_is_better = True

    def __init__(self, config: Multiplication) -> None:
        self.grader: Grader = exact_match.grade_exact
        self.rubric: Mapping[str, float] = {"exact": 1.0}
        self.floor: Mapping[str, float] = {"exact": 0.0}
        # Twice the digits of the product, at one token each, leave room for blanks and the end.
        self.max_new_tokens = config.max_new_tokens or 4 * config.digits + 4
        self.stop = config.stop or ()
        pairs = factor_pairs(config.digits, config.split_seed)
        keys = [(min(pair), max(pair)) for pair in pairs]
        train, test = seeded_split(pairs, keys, config.split_seed, self.name)
        chat = config.chat is not False
        self._examples: dict[Split, tuple[Example, ...]] = {
            "train": tuple(_example(index, *pair, chat=chat) for index, pair in enumerate(train)),
            "test": tuple(_example(index, *pair, chat=chat) for index, pair in enumerate(test)),
        }

    def examples(self, split: Split) -> Sequence[Example]:
        """Return the examples of a split, always the same ones in the same order."""
        return self._examples[split]

    def answer_of(self, text: str, example: Example) -> str | None:
        """Return the number a completion ends with."""
        return numeric_match.normalized_number(text)


def multiplication_question(a: int, b: int) -> str:
    """Write the user message."""
    return f"What is {a} * {b}? Answer with the number only."


def factor_pairs(digits: int, seed: int) -> list[tuple[int, int]]:
    """Return the pairs that are asked for: all of them, or `DRAWN` that share no factors.

    Drawn pairs differ as unordered pairs. Within a round every number is first factor once and
    second factor once, so no number is asked for much more often than another.
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
