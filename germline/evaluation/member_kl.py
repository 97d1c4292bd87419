"""KL divergence of members from the center, on any engine that computes log-probabilities.

The center generates answers to a few examples, and members compute the log-probabilities of the
answers' tokens. For an antithetic pair and every token y_t of an answer,

    (1)  KL_t = log p_0(y_t) - (log p_+(y_t) + log p_-(y_t)) / 2

in nats; the mean over tokens and pairs is returned. To second order in the perturbation it is the
KL divergence of the members from the center: in a pair the linear terms cancel, and the curvature
of log p does not depend on the generated token. On the nano model it was within a factor of 1.5 of
the exact divergence up to 0.01 nats (`docs/methods.md`). Engines return one number per token and no
distribution over the vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from germline.episodes import model_turns
from germline.fleet.engine_queries import LogProbabilitiesQuery
from germline.protocols import Fleet
from germline.types import (
    Completion,
    Decoding,
    Example,
    GermlineError,
    Perturbation,
    SigmaTrial,
    as_seed_perturbation,
)

TOKENS = 128
"""Tokens after which an answer is cut off: its beginning is enough for nats per token."""

FEWEST_EXAMPLES, MOST_EXAMPLES, TOKENS_IN_ALL = 16, 64, 2048
"""The number of examples is chosen for about this number of tokens, because a few tokens carry most
of the divergence. On nano, the calibrated sigmas of five run seeds differ 2.6-fold with 16
examples, and 1.4-fold with 64."""

EXAMPLES_OF_MEMBER = 4
"""Few members are measured on few examples, at least `FEWEST_EXAMPLES`."""


Present = Callable[[Sequence[Example], Decoding], tuple[Sequence[Example], Decoding]]


class MemberKl:
    """Measures members on training examples; the center generates its answers once, when needed.

    Args:
        fleet: the engines that generate and score texts.
        batch_of: the batch of any generation.
        generation: the generation whose batch is used first; small batches are joined with those of
            later generations.
        decoding: of the generation.
        on_trial: is called before and after each measurement.
        present: returns the examples as the center is prompted with them, and its decoding.

    Attributes:
        trials: the measurements so far.
    """

    def __init__(
        self,
        fleet: Fleet,
        batch_of: Callable[[int], Sequence[Example]],
        generation: int,
        decoding: Decoding,
        on_trial: Callable[[SigmaTrial], None] = lambda _trial: None,
        present: Present = lambda examples, decoding: (examples, decoding),
    ) -> None:
        self.trials: list[SigmaTrial] = []
        self._on_trial = on_trial
        self._present = present
        self._fleet = fleet
        self._batch_of = batch_of
        self._generation = generation
        self._decoding = replace(decoding, max_new_tokens=min(TOKENS, decoding.max_new_tokens))
        self._examples: list[Example] = []
        self._written: list[Completion] = []

    def __call__(self, members: Sequence[Perturbation]) -> float:
        """Return equation (1) of members that are antithetic pairs and share a sigma.

        Raises:
            GermlineError: the center generates no token.
        """
        sigma = as_seed_perturbation(members[0]).sigma
        self._on_trial(SigmaTrial(sigma))
        kl = self._measured(members)
        self.trials.append(SigmaTrial(sigma, kl))
        self._on_trial(self.trials[-1])
        return kl

    def _measured(self, members: Sequence[Perturbation]) -> float:
        if not self._written:  # Most generations do not calibrate sigma and need no answers.
            self._write(count_examples(self._decoding.max_new_tokens, len(members)))
        center, *pairs = (
            np.array([value for text in row for value in text], dtype=np.float64)
            for row in self._fleet.query(
                LogProbabilitiesQuery(
                    [None, *members], self._examples, [self._written] * (1 + len(members))
                )
            )
        )
        return float(np.mean(center - np.mean(pairs, axis=0)))

    def _write(self, count: int) -> None:
        """Generate the center's answers, and keep the examples whose answers are not empty."""
        examples, decoding = self._present(self._gathered(count), self._decoding)
        rollouts = self._fleet.evaluate_center(examples, decoding).rollouts
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
            batch = self._batch_of(self._generation + later)
            by_index |= {example.index: example for example in batch}
            if len(by_index) >= count:
                break
        return list(by_index.values())[:count]


def count_examples(new_tokens: int, members: int) -> int:
    """Return how many examples members are measured on, for answers of so many tokens."""
    most = min(MOST_EXAMPLES, TOKENS_IN_ALL // new_tokens, EXAMPLES_OF_MEMBER * members)
    return max(FEWEST_EXAMPLES, most)
