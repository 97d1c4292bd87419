"""How far a model went from the start: exact KL over the whole vocabulary, and perplexity.

Texts are read token by token (teacher-forced) by who wrote them and by the start model. At every
token t of a text y, with the full distributions p (tuned) and q (start) over the vocabulary V,

    (1)  KL_t = sum_{v in V} p(v | y_<t) (log p(v | y_<t) - log q(v | y_<t))
    (2)  text sum   = sum_t KL_t                  mean over texts, with its standard error
    (3)  token mean = sum of all KL_t / number of tokens
    (4)  surprise   = -log q(y_t | y_<t)          its exponential mean is the perplexity

in nats: forward KL(tuned || start) along texts of the tuned model, at temperature 1 whatever the
texts were sampled at; texts written greedily, or at another temperature, are not samples of p, and
then (2) is the divergence along those texts, not an estimate of the KL between distributions of
texts. The field estimates (2) from the sampled tokens alone (k3); here nothing is estimated at a
token. Logarithms are fp32, sums fp64; the end-of-sequence token counts, the prompt does not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from germline.engines.teacher_forcing import split_completions
from germline.evaluation.held_out import mean_and_error
from germline.protocols import TextScorer
from germline.types import Completion, Example, Perturbation

POSITIONS_AT_ONCE = 1024
"""Tokens whose distributions are held together: 0.6 GB per model for a vocabulary of 150,000."""


@dataclass(frozen=True, slots=True)
class TextDivergence:
    """One text, read by who wrote it and by the start model.

    Attributes:
        divergence: equation (1) summed over the text, in nats.
        surprise: equation (4) summed over the text, in nats.
        tokens: of the completion.
        vocabulary: how many tokens there were to choose from.
    """

    divergence: float
    surprise: float
    tokens: int
    vocabulary: int

    @property
    def improbable(self) -> bool:
        """Whether a token costs more than half of a blind guess; no number at all does too."""
        return not self.surprise <= self.tokens * math.log(self.vocabulary) / 2


@dataclass(frozen=True, slots=True)
class KlDivergence:
    """The readings of some texts together, in nats; direction and texts as this file says."""

    per_token: float
    per_text: float
    standard_error: float
    perplexity: float
    texts: int
    tokens: int

    @classmethod
    def of(cls, readings: Sequence[TextDivergence]) -> "KlDivergence":
        """Take at least one reading together."""
        tokens = sum(one.tokens for one in readings)
        sums = [one.divergence for one in readings]
        per_text, error = mean_and_error(sums)
        surprise = math.fsum(one.surprise for one in readings) / tokens
        # Weights thrown far off make surprises whose exponential no float holds.
        perplexity = math.exp(surprise) if surprise < 700 else math.inf
        return cls(math.fsum(sums) / tokens, per_text, error, perplexity, len(readings), tokens)


@torch.inference_mode()
def measure_texts(
    tuned: TextScorer,
    start: TextScorer,
    members: Sequence[Perturbation | None],
    examples: Sequence[Example],
    completions: Sequence[Sequence[Completion]],
) -> list[list[TextDivergence]]:
    """Let members, and the start model, read what the members wrote: `[members][examples]`.

    Args:
        tuned: the engine whose members wrote the texts; None among them is its center.
        start: the engine whose center is the start model; before any update, the same one.
        members: who wrote.
        examples: what they were asked.
        completions: what they wrote, `[members][examples]`.
    """
    readings: list[list[TextDivergence]] = [[] for _ in members]
    for some, few in split_completions(completions, POSITIONS_AT_ONCE):
        asked = examples[few]
        written = [row[few] for row in completions[some]]
        ours = tuned.read(members[some], asked, written)
        theirs = start.read([None] * len(written), asked, written)
        for place, row in enumerate(written):
            readings[some.start + place] += [
                _reading(*one) for one in zip(ours[place], theirs[place], row, strict=True)
            ]
    return readings


def _reading(ours: Tensor, theirs: Tensor, completion: Completion) -> TextDivergence:
    log_p = ours.float().log_softmax(-1)
    log_q = theirs.float().to(log_p.device).log_softmax(-1)
    # No divergence is negative; rounding may bring that of equal distributions below 0.
    divergence = (log_p.exp() * (log_p - log_q)).sum(dtype=torch.float64).clamp(min=0)
    tokens = torch.tensor(completion.tokens, device=log_q.device)[:, None]
    surprise = -log_q.gather(-1, tokens).sum(dtype=torch.float64)
    return TextDivergence(float(divergence), float(surprise), len(tokens), log_q.shape[-1])
