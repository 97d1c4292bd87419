"""Penalties that a completion's text alone decides, beside the rewards of any task.

Both scores are from 0 (no penalty) to 1, and their default weight is -1.

- length: 0 up to `start` characters, 1 from `end` on, and linear between, as the soft punishment
  of overlong completions in DAPO (arXiv 2503.14476), which counts tokens.
- repetition: the share of n-grams of words that occurred before in the completion (arXiv
  2502.03373); 0 for texts of fewer than n words.
"""

from collections.abc import Sequence

from germline.config.scorers import LengthPenalty, RepetitionPenalty
from germline.scorers import Item, Score, Scorer

TEXTS_AT_A_TIME = 1024


class TextPenalty(Scorer):
    """A score of the text alone; subclasses say which."""

    batch_size = TEXTS_AT_A_TIME

    def score(self, items: Sequence[Item]) -> list[Score]:
        """Score the texts."""
        return [Score(self.penalty(text)) for text, _ in items]

    def penalty(self, text: str) -> float:
        """Return the penalty of a text; override this."""
        raise NotImplementedError


class LengthScorer(TextPenalty):
    """How far a text is beyond a length."""

    def __init__(self, config: LengthPenalty, setting: str) -> None:
        self._start, self._end = config.start, config.end

    def penalty(self, text: str) -> float:
        """Return 0 up to `start` characters, and 1 from `end` on."""
        beyond = (len(text) - self._start) / (self._end - self._start)
        return min(1.0, max(0.0, beyond))


class RepetitionScorer(TextPenalty):
    """How much of a text was written before in it."""

    def __init__(self, config: RepetitionPenalty, setting: str) -> None:
        self._n = config.ngram

    def penalty(self, text: str) -> float:
        """Return the share of repeated n-grams."""
        words = text.split()
        grams = [tuple(words[place : place + self._n]) for place in range(len(words) - self._n + 1)]
        return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
