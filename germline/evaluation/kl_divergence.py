"""Divergence of a model from the start model: exact KL over the whole vocabulary, and perplexity.

Both the model that wrote a text and the start model compute the logits of its tokens (teacher
forcing). At every token t of a text y, with the full distributions p (tuned) and q (start) over the
vocabulary V,

    (1)  KL_t = sum_{v in V} p(v | y_<t) (log p(v | y_<t) - log q(v | y_<t))
    (2)  text sum   = sum_t KL_t                  mean over texts, with its standard error
    (3)  token mean = sum of all KL_t / number of tokens
    (4)  surprise   = -log q(y_t | y_<t)          its exponential mean is the perplexity

in nats: forward KL(tuned || start) along texts of the tuned model. The distributions are those at
temperature 1, whatever the sampling temperature. Texts generated greedily, or at another
temperature, are not samples of p; for them (2) is the divergence along those texts and not an
estimate of the KL between distributions of texts. The field estimates (2) from the sampled tokens
alone (k3); here the KL at each token is exact. Logarithms are fp32, sums fp64; the end-of-sequence
token is included, the prompt is not.
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
"""Tokens per batch of distributions: 0.6 GB per model for a vocabulary of 150,000."""


@dataclass(frozen=True, slots=True)
class TextDivergence:
    """The divergence of one text.

    Attributes:
        divergence: equation (1) summed over the text, in nats.
        surprise: equation (4) summed over the text, in nats.
        tokens: number of tokens of the completion.
        vocabulary: size of the vocabulary.
    """

    divergence: float
    surprise: float
    tokens: int
    vocabulary: int

    @property
    def improbable(self) -> bool:
        """Whether the mean surprise is above half that of a random guess, or not finite."""
        return not self.surprise <= self.tokens * math.log(self.vocabulary) / 2


@dataclass(frozen=True, slots=True)
class KlDivergence:
    """The mean divergence of several texts, in nats; see the module for direction and texts."""

    per_token: float
    per_text: float
    standard_error: float
    perplexity: float
    texts: int
    tokens: int

    @classmethod
    def of(cls, readings: Sequence[TextDivergence]) -> "KlDivergence":
        """Summarize the divergences of at least one text."""
        tokens = sum(reading.tokens for reading in readings)
        sums = [reading.divergence for reading in readings]
        per_text, error = mean_and_error(sums)
        surprise = math.fsum(reading.surprise for reading in readings) / tokens
        # For a broken model the exponential may be larger than a float can represent.
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
    """Measure the divergence of the texts of members from the start model: `[members][examples]`.

    Args:
        tuned: the engine whose members wrote the texts.
        start: the engine whose center is the start model; before any update, the same one.
        members: the members that wrote the texts; None is the center.
        examples: the prompts.
        completions: the texts, `[members][examples]`.
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
    # Rounding may make the divergence of equal distributions negative.
    divergence = (log_p.exp() * (log_p - log_q)).sum(dtype=torch.float64).clamp(min=0)
    tokens = torch.tensor(completion.tokens, device=log_q.device)[:, None]
    surprise = -log_q.gather(-1, tokens).sum(dtype=torch.float64)
    return TextDivergence(float(divergence), float(surprise), len(tokens), log_q.shape[-1])
