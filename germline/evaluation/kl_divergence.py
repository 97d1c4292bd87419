"""KL divergence of texts: exact from the start model, and estimated of members from the center.

**From the start model** (`measure_texts`). Both the model that wrote a text and the start model
compute the logits of its tokens (teacher forcing). At every token t of a text y, with the full
distributions p (tuned) and q (start) over the vocabulary V,

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

**Of members from the center** (`MemberKl`), on any engine: engines return one number per token and
no distribution over the vocabulary. The center generates answers to a few examples, and members
compute the log-probabilities of the answers' tokens. For an antithetic pair and every token y_t of
an answer,

    (5)  KL_t = log p_0(y_t) - (log p_+(y_t) + log p_-(y_t)) / 2

in nats; the mean over tokens and pairs is returned. To second order in the perturbation it is the
KL divergence of the members from the center: in a pair the linear terms cancel, and the curvature
of log p does not depend on the generated token. On the nano model it was within a factor of 1.5 of
the exact divergence up to 0.01 nats (`docs/methods.md`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from germline.config import MicrobatchSettings
from germline.episodes import model_turns
from germline.evaluation.held_out import mean_and_error
from germline.fleet import Fleet
from germline.fleet.worker_jobs import LogProbabilitiesQuery
from germline.protocols import Members, Texts
from germline.rollout import cut_microbatches
from germline.types import (
    Completion,
    Decoding,
    Example,
    GermlineError,
    Perturbation,
    SigmaTrial,
    as_seed_perturbation,
)

POSITIONS_AT_ONCE = 1024
"""Tokens per batch of distributions: 0.6 GB per model for a vocabulary of 150,000."""

TOKENS = 128
"""Tokens after which an answer is cut off: its beginning is enough for nats per token."""

FEWEST_EXAMPLES, MOST_EXAMPLES, TOKENS_IN_ALL = 16, 64, 2048
"""The number of examples is chosen for about this number of tokens, because a few tokens carry most
of the divergence. On nano, the calibrated sigmas of five run seeds differ 2.6-fold with 16
examples, and 1.4-fold with 64."""

EXAMPLES_OF_MEMBER = 4
"""Few members are measured on few examples, at least `FEWEST_EXAMPLES`."""

ReadTexts = Callable[[Members, Sequence[Example], Texts], list[list[Tensor]]]
"""Such as `TextScorer.read`: returns logits `[members][examples]`, `[tokens, vocabulary]`."""

Present = Callable[[Sequence[Example], Decoding], tuple[Sequence[Example], Decoding]]

Keep = Callable[[object, Callable[[], float]], tuple[float, bool]]
"""Returns a divergence, given the inputs of a measurement beside those of the run, and what
measures it; and whether an earlier run has measured it."""


def nothing_kept(_inputs: object, measure: Callable[[], float]) -> tuple[float, bool]:
    """Measure a divergence."""
    return measure(), False


@dataclass(frozen=True, slots=True)
class TextDivergence:
    """Equations (1) and (4) summed over the tokens of one text, in nats."""

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
    tuned: ReadTexts,
    start: ReadTexts,
    members: Sequence[Perturbation | None],
    examples: Sequence[Example],
    completions: Sequence[Sequence[Completion]],
) -> list[list[TextDivergence]]:
    """Measure the divergence of the texts of members from the start model: `[members][examples]`.

    Args:
        tuned: reads texts with the model whose members wrote them.
        start: reads texts with the start model; before any update, the same one.
        members: None is the center.
        examples: the prompts.
        completions: the texts, `[members][examples]`.
    """
    readings: list[list[TextDivergence]] = [[] for _ in members]
    longest = max(len(one.tokens) for row in completions for one in row)
    texts = max(1, POSITIONS_AT_ONCE // max(1, longest))
    width = min(texts, len(examples))
    size = MicrobatchSettings(members=max(1, texts // width), examples=width)
    for part in cut_microbatches(members, examples, size):
        some = slice(part.first_member, part.first_member + len(part.members))
        few = slice(part.first_example, part.first_example + len(part.examples))
        written = [row[few] for row in completions[some]]
        ours = tuned(part.members, part.examples, written)
        theirs = start([None] * len(written), part.examples, written)
        for kept, *those in zip(readings[some], ours, theirs, written, strict=True):
            kept += [text_divergence(*one) for one in zip(*those, strict=True)]
    return readings


def text_divergence(ours: Tensor, theirs: Tensor, completion: Completion) -> TextDivergence:
    """Measure one text, from its logits `[tokens, vocabulary]` of the tuned and the start model."""
    log_q = theirs.float().log_softmax(-1)
    log_p = ours.float().to(log_q.device).log_softmax(-1)
    # Rounding may make the divergence of equal distributions negative.
    divergence = (log_p.exp() * (log_p - log_q)).sum(dtype=torch.float64).clamp(min=0)
    tokens = torch.tensor(completion.tokens, device=log_q.device)[:, None]
    surprise = -log_q.gather(-1, tokens).sum(dtype=torch.float64)
    return TextDivergence(float(divergence), float(surprise), len(tokens), log_q.shape[-1])


@dataclass
class MemberKl:
    """Measures members on training examples; the center generates its answers once, when needed.

    Attributes:
        fleet: the engines that generate and score texts.
        batch_of: the batch of any generation.
        generation: the generation whose batch is used first; small batches are joined with those of
            later generations.
        decoding: of the generation.
        on_trial: is called before and after each measurement.
        present: returns the examples as the center is prompted with them, and its decoding.
        keep: measures a divergence, or takes over what an earlier run has measured.
        trials: the measurements so far.
    """

    fleet: Fleet
    batch_of: Callable[[int], Sequence[Example]]
    generation: int
    decoding: Decoding
    on_trial: Callable[[SigmaTrial], None] = lambda _trial: None
    present: Present = lambda examples, decoding: (examples, decoding)
    keep: Keep = nothing_kept
    trials: list[SigmaTrial] = field(default_factory=list)
    _examples: list[Example] = field(default_factory=list)
    _written: list[Completion] = field(default_factory=list)

    def __call__(self, members: Sequence[Perturbation]) -> float:
        """Return equation (5) of members that are antithetic pairs and share a sigma."""
        seeds = [as_seed_perturbation(member) for member in members]
        sigma = seeds[0].sigma
        examples, decoding = self._asked(len(members))

        def measure() -> float:
            self.on_trial(SigmaTrial(sigma))
            if not self._written:  # Most generations do not calibrate sigma and need no answers.
                self._write(examples, decoding)
            return self._measured(members)

        divergence, is_kept = self.keep((seeds, list(examples), decoding), measure)
        self.trials.append(SigmaTrial(sigma, divergence, is_kept))
        self.on_trial(self.trials[-1])
        return divergence

    def _measured(self, members: Sequence[Perturbation]) -> float:
        center, *pairs = (
            np.array([value for text in row for value in text], dtype=np.float64)
            for row in self.fleet.query(
                LogProbabilitiesQuery(
                    [None, *members], self._examples, [self._written] * (1 + len(members))
                )
            )
        )
        return float(np.mean(center - np.mean(pairs, axis=0)))

    def _asked(self, members: int) -> tuple[Sequence[Example], Decoding]:
        """Return the examples that the center answers, and its decoding."""
        new_tokens = min(TOKENS, self.decoding.max_new_tokens)
        return self.present(
            self._gathered(count_examples(new_tokens, members)),
            replace(self.decoding, max_new_tokens=new_tokens),
        )

    def _write(self, examples: Sequence[Example], decoding: Decoding) -> None:
        """Generate the center's answers, and keep the examples whose answers are not empty."""
        rollouts = self.fleet.evaluate_center(examples, decoding).rollouts
        answered = [
            turn
            for turns in map(model_turns, examples, rollouts)
            for turn in turns[:1]
            if turn[1].tokens
        ]
        if not answered:
            raise GermlineError(
                f"strategy.sigma=auto: the model generated no token for any of {len(examples)} "
                "prompts, so members cannot be compared with it: check its answers with `germline "
                "generate`, or give strategy.sigma as a number, such as 0.1"
            )
        self._examples = [example for example, _ in answered]
        self._written = [written for _, written in answered]

    def _gathered(self, count: int) -> list[Example]:
        by_index: dict[int, Example] = {}
        for later in range(count):
            batch = self.batch_of(self.generation + later)
            by_index |= {example.index: example for example in batch}
            if len(by_index) >= count:
                break
        return list(by_index.values())[:count]


def count_examples(new_tokens: int, members: int) -> int:
    """Return how many examples members are measured on, for answers of so many tokens."""
    most = min(MOST_EXAMPLES, TOKENS_IN_ALL // new_tokens, EXAMPLES_OF_MEMBER * members)
    return max(FEWEST_EXAMPLES, most)
