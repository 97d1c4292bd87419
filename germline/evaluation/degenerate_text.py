"""Detect degenerate texts, whatever reward they earned: four detectors and their shares.

The detectors look at the text itself and not at its reward. They distinguish broken models from
working ones, and find simple reward hacks such as the empty answer; they do not check whether a
text makes sense.

- empty: nothing visible; text that a stop string cut off does not count.
- special only: all tokens are special ones. A check for "" alone misses this case when special
  tokens are kept in the text: one study counted no hack although all models wrote only
  `<|endoftext|>`.
- looping: at least half of the tokens belong to one repeated n-gram, n up to 16.
- improbable: under the start model a token has more than half the surprise of a random guess,

      1/T sum_t -log p_start(y_t | y_<t)  >  1/2 log(vocabulary)

  a threshold that fits small and large vocabularies alike (perplexity above the root of their
  size).

Known limits: loops whose repetitions differ in a word are not detected. The detectors work on
tokens, so languages without spaces are supported.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from germline.types import Completion

LONGEST_NGRAM = 16
"""Tokens of the longest n-gram whose repetition is detected."""

ROUNDS = 3
"""Repetitions from which on an n-gram is a loop; two may be emphasis."""

SHORTEST_LOOP = 8
"""Tokens of the shortest loop: `1000000` is a number and not a loop."""

LOOPING = 0.5
"""Share of a text in one loop from which on the text is degenerate."""


@dataclass(frozen=True, slots=True)
class DegenerateTextShares:
    """Shares of texts, each between 0 and 1; one text may count in several.

    Attributes:
        improbable: None when the start model did not score the texts.
        garbage: texts with at least one of the four.
        texts: the number of texts.
    """

    empty: float
    special_only: float
    looping: float
    improbable: float | None
    garbage: float
    texts: int


def degenerate_text_shares(
    completions: Sequence[Completion],
    special_ids: frozenset[int],
    improbable: Sequence[bool] | None = None,
) -> DegenerateTextShares:
    """Compute the shares of degenerate texts, at least one.

    Args:
        completions: the texts.
        special_ids: the special tokens of the model that wrote the texts; no part of a loop.
        improbable: `TextDivergence.improbable` of each text.
    """
    empty = [not completion.text.strip() for completion in completions]
    special = [is_special_only(completion, special_ids) for completion in completions]
    words = [[t for t in one.tokens if t not in special_ids] for one in completions]
    looping = [loop_share(tokens) >= LOOPING for tokens in words]
    unlikely = improbable if improbable is not None else [False] * len(completions)
    garbage = [any(flags) for flags in zip(empty, special, looping, unlikely, strict=True)]
    return DegenerateTextShares(
        empty=_share(empty),
        special_only=_share(special),
        looping=_share(looping),
        improbable=None if improbable is None else _share(unlikely),
        garbage=_share(garbage),
        texts=len(completions),
    )


def is_special_only(completion: Completion, special_ids: frozenset[int]) -> bool:
    """Return whether all tokens are special; the text itself may contain them or not.

    A text that consists of the end-of-sequence token is of this kind.
    """
    return all(token in special_ids for token in completion.tokens)


def loop_share(tokens: Sequence[int]) -> float:
    """Return the share of tokens in the longest loop.

    A loop of an n-gram is a sequence in which every token equals the one n positions before it,
    with at least three repetitions and eight tokens.
    """
    longest = 0
    for n in range(1, min(LONGEST_NGRAM, len(tokens) // ROUNDS) + 1):
        repeated = 0
        for place in range(n, len(tokens)):
            repeated = repeated + 1 if tokens[place] == tokens[place - n] else 0
            length = repeated + n
            if length >= max(ROUNDS * n, SHORTEST_LOOP):
                longest = max(longest, length)
    return longest / len(tokens) if tokens else 0.0


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)
