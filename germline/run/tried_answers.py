"""The examples that the checks of a task grade answers to, and wrong answers to them."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from germline.types import Decoding, Example

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

QUICK = 4
"""Number of examples that are tried at the start of a run."""


def spread(examples: Sequence[Example], count: int) -> list[Example]:
    """Return `count` examples, evenly spaced over a split."""
    return [examples[place] for place in places(len(examples), count)]


def places(total: int, count: int) -> list[int]:
    """Return `count` different numbers, evenly spaced over `range(total)`."""
    return [place * total // min(count, total) for place in range(min(count, total))]


def wrong_answers(gold: Sequence[str]) -> list[tuple[str, int]]:
    """Return plain wrong answers of the right kind, each with the place of the gold answer.

    An answer is the gold one of another example, and 0 where the gold answer is a number.
    """
    wrong: list[tuple[str, int]] = []
    for place, answer in enumerate(gold):
        others = (other for other in (*gold[place + 1 :], *gold[:place]) if other != answer)
        wrong += [(other, place) for other in itertools.islice(others, 1)]
        if _number(answer):
            wrong.append(("0", place))
    return wrong


def answer_tokens(tokenizer: "PreTrainedTokenizerBase", answer: str) -> list[int]:
    """Return the tokens of an answer."""
    return list(tokenizer(answer, add_special_tokens=False, verbose=False)["input_ids"])


def as_written(
    tokenizer: "PreTrainedTokenizerBase", tokens: Sequence[int], decoding: Decoding
) -> str:
    """Return the text that the reward gets when a model writes these tokens."""
    from germline.engines.rows_in_progress import Detokenizer, RowsInProgress  # imports torch: slow

    end = tokenizer.eos_token_id
    ends = frozenset() if end is None else frozenset([int(end)])
    row = RowsInProgress(Detokenizer(tokenizer, ends), ends, decoding, 1)
    for token in tokens:
        row.write([0], [token])
    return row.completion(0, 0).text


def _number(answer: str) -> float | None:
    """Return the number that an answer is; None for any other answer."""
    try:
        return float(answer.replace(",", ""))
    except ValueError:
        return None
