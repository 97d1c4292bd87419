"""Arithmetic: answer with the bare number; the reward is 1 for exactly it, 0 for any other text.

`arithmetic` has all short sums, differences and products. `multiplication` has products of two
numbers of a given length: with up to two digits all pairs of factors, of longer ones `DRAWN` drawn
pairs. Both are split by unordered pair, so that `3 + 5`, `5 + 3` and `5 - 3` are in the same split.

The question of `multiplication` also asks for the bare number, because a model without training
would explain its answer.
"""

from collections.abc import Sequence
from itertools import product

from germline.config import Arithmetic, Multiplication
from germline.graders.builtin_rewards import make_rubric, normalized_number
from germline.noise import epoch_permutation
from germline.tasks.splits import SplitTask, seeded_split
from germline.types import Example

LARGEST_OPERAND = {"+": 20, "-": 20, "*": 9}
"""Operands go from 0 to this; differences may be negative."""

MAX_NEW_TOKENS = 32

DRAWN = 2500
"""Pairs of factors with three digits and more: about 2000 to train and 500 to test."""

ALL_PAIRS_DIGITS = 2
"""Largest number of digits for which every ordered pair of factors is an example."""

Calculation = tuple[int, str, int]
"""(a, sign, b)"""


class CalculationTask(SplitTask):
    """Calculations whose gold answer is the bare number."""

    def __init__(
        self,
        config: Arithmetic | Multiplication,
        calculations: Sequence[Calculation],
        max_new_tokens: int,
        end: str = "",
    ) -> None:
        parts = {"exact": 1.0}, {"exact": 0.0}
        super().__init__(config, make_rubric(["exact"]), *parts, max_new_tokens=max_new_tokens)
        pairs = [(min(a, b), max(a, b)) for a, _, b in calculations]
        sides = seeded_split(calculations, pairs, config.split_seed, self.name)

        def example(index: int, calculation: Calculation) -> Example:
            a, sign, b = calculation
            return Example(
                index=index,
                prompt=arithmetic_question(a, sign, b) + end,
                answer=str(arithmetic_answer(a, sign, b)),
                chat=config.sends_chats,
                facts={"a": a, "sign": sign, "b": b},
            )

        self._examples = self.by_split(sides, example)

    def answer_of(self, text: str, example: Example) -> str | None:
        """Return the number a completion ends with."""
        return normalized_number(text)


class ArithmeticTask(CalculationTask):
    """Short sums, differences and products; see the module."""

    def __init__(self, config: Arithmetic) -> None:
        calculations = [
            (a, sign, b)
            for sign, largest in LARGEST_OPERAND.items()
            for a, b in product(range(largest + 1), repeat=2)
        ]
        super().__init__(config, calculations, MAX_NEW_TOKENS)


class MultiplicationTask(CalculationTask):
    """Products of two numbers of a given length; see the module."""

    def __init__(self, config: Multiplication) -> None:
        pairs = factor_pairs(config.digits, config.split_seed)
        # Twice the digits of the product, at one token each, include blanks and the end token.
        most = 4 * config.digits + 4
        calculations = [(a, "*", b) for a, b in pairs]
        super().__init__(config, calculations, most, " Answer with the number only.")


def arithmetic_question(a: int, sign: str, b: int) -> str:
    """Write the user message."""
    return f"What is {a} {sign} {b}?"


def arithmetic_answer(a: int, sign: str, b: int) -> int:
    """Compute the gold answer."""
    return {"+": a + b, "-": a - b, "*": a * b}[sign]


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
