"""Texts that are no answers, whatever reward they earned: four detectors and their shares.

A reward sees what it was written to see; these look at the text itself. They tell broken models
from working ones, and find hacks as plain as the empty answer; they do not judge sense.

- empty: nothing visible, what a stop string cut off left out.
- special only: no token but special ones. Looking for "" alone misses this wherever special tokens
  stay in the text: one study counted no hack where all models wrote only `<|endoftext|>`.
- looping: at least half of the tokens belong to one n-gram said over and over, n up to 16.
- improbable: under the start model a token costs more than half of what a blind guess would,

      1/T sum_t -log p_start(y_t | y_<t)  >  1/2 log(vocabulary)

  a threshold that fits small and large vocabularies alike (perplexity above the root of their
  size).

Known limits: loops whose rounds differ in a word are not seen; languages without spaces are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from germline.types import Completion

LONGEST_NGRAM = 16
"""Tokens of the longest phrase whose repetition is looked for."""

ROUNDS = 3
"""An n-gram said so often in a row is a loop; twice is emphasis."""

SHORTEST_LOOP = 8
"""Tokens below which nothing is a loop: `1000000` is a number."""

LOOPING = 0.5
"""A text of which this share is one loop is not an answer."""


@dataclass(frozen=True, slots=True)
class DegenerateTextShares:
    """Shares of texts, each between 0 and 1; one text may count in several.

    Attributes:
        improbable: None where the texts were not read by the start model.
        garbage: share with at least one of the four.
        texts: how many there were.
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
    """Look at some texts.

    Args:
        completions: at least one.
        special_ids: the special tokens of who wrote them.
        improbable: for each text, what `Reading.improbable` says.
    """
    empty = [is_empty(one) for one in completions]
    special = [is_special_only(one, special_ids) for one in completions]
    looping = [loop_share(_words(one, special_ids)) >= LOOPING for one in completions]
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


def is_empty(completion: Completion) -> bool:
    """Say whether nothing visible was written."""
    return not completion.text.strip()


def is_special_only(completion: Completion, special_ids: frozenset[int]) -> bool:
    """Say whether all tokens are special: judged by the tokens, as decoding may drop or keep them.

    A text that ends at once, with its one end-of-sequence token, is of this kind.
    """
    return all(token in special_ids for token in completion.tokens)


def loop_share(tokens: Sequence[int]) -> float:
    """Return the share of tokens in the longest stretch that says one n-gram over and over.

    A stretch in which every token equals the one n before it, and which holds at least three
    rounds and eight tokens, is a loop of the n-gram.
    """
    longest = 0
    for n in range(1, min(LONGEST_NGRAM, len(tokens) // ROUNDS) + 1):
        repeated = 0
        for place in range(n, len(tokens)):
            repeated = repeated + 1 if tokens[place] == tokens[place - n] else 0
            stretch = repeated + n
            if stretch >= max(ROUNDS * n, SHORTEST_LOOP):
                longest = max(longest, stretch)
    return longest / len(tokens) if tokens else 0.0


def _words(completion: Completion, special_ids: frozenset[int]) -> list[int]:
    """Return the tokens without the special ones: an end of sequence is part of no phrase."""
    return [token for token in completion.tokens if token not in special_ids]


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)
