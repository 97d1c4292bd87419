"""Measure members at one sigma: whether they are sane, whether they differ, and their signal.

A few members are evaluated on a few batches. Sanity is measured by degenerate texts and by the
exact KL divergence from the base model, difference by the rewards, and signal by the agreement of
the updates that two halves of the examples give.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from germline.evaluation.degenerate_text import degenerate_text_shares
from germline.evaluation.kl_divergence import KlDivergence, measure_texts
from germline.protocols import Strategy
from germline.shaping import fitness
from germline.signal_metrics import half_agreement, informative_examples
from germline.studies.trial_engine import TrialEngine
from germline.types import Completion, Perturbation

MEMBERS = 8
"""Largest number of members at one sigma."""

BATCHES = 2
"""Batches at one sigma, each with different directions."""

MOST_EXAMPLES = 32
"""Largest number of examples of a batch that are evaluated."""


@dataclass(frozen=True, slots=True)
class SigmaProbe:
    """Measurements of members at one sigma, or of the center: means over the batches.

    Attributes:
        sigma: in `strategy.sigma_unit`; 0 is the center.
        reward: mean over members and examples.
        spread: standard deviation of the members' fitness.
        informative: share of the examples on which members differ.
        agreement: cosine of the updates that two halves of the examples give; None without one.
        garbage: share of degenerate texts, see `evaluation.degenerate_text`.
        divergence: exact KL from the base model per token of the members' texts, in nats.
    """

    sigma: float
    reward: float
    spread: float
    informative: float
    agreement: float | None
    garbage: float
    divergence: float


def probe_sigma(bench: TrialEngine, sigma: float) -> SigmaProbe:
    """Evaluate members with one sigma on a few batches."""
    strategy = bench.directions(sigma, MEMBERS, BATCHES)
    return _mean(sigma, [_measured(bench, strategy, place) for place in range(BATCHES)])


def probe_center(bench: TrialEngine) -> SigmaProbe:
    """Evaluate the center on the same batches."""
    return _mean(0.0, [_measured(bench, None, place) for place in range(BATCHES)])


def _measured(bench: TrialEngine, strategy: Strategy | None, place: int) -> SigmaProbe:
    examples = bench.batch_of(place)[:MOST_EXAMPLES]
    agreement = None
    members: list[Perturbation | None] = [None]
    if strategy is None:
        evaluation = bench.fleet.evaluate_center(examples, bench.decoding)
    else:
        population = strategy.ask(place)
        members = [*population.members]
        evaluation = bench.fleet.evaluate(population, examples, bench.decoding)
        agreement = half_agreement(population, evaluation, bench.shape)
    written: list[list[Completion]] = [[] for _ in members]
    for rollout in evaluation.rollouts:
        written[rollout.member].append(rollout.completion)
    rows = measure_texts(bench.reader, bench.reader, members, examples, written)
    readings = [one for row in rows for one in row]
    unlikely = [reading.improbable for reading in readings]
    texts = [one for row in written for one in row]
    return SigmaProbe(
        sigma=0.0,
        reward=_known_mean(evaluation.rewards),
        spread=float(np.nanstd(fitness(evaluation.rewards))),
        informative=informative_examples(evaluation.rewards),
        agreement=agreement,
        garbage=degenerate_text_shares(texts, bench.reader.special_ids, unlikely).garbage,
        divergence=KlDivergence.of(readings).per_token,
    )


def _mean(sigma: float, batches: Sequence[SigmaProbe]) -> SigmaProbe:
    agreements = [batch.agreement for batch in batches if batch.agreement is not None]
    divergence = np.mean([batch.divergence for batch in batches])
    return SigmaProbe(
        sigma=sigma,
        reward=_known_mean([batch.reward for batch in batches]),
        spread=_known_mean([batch.spread for batch in batches]),
        informative=_known_mean([batch.informative for batch in batches]),
        agreement=math.fsum(agreements) / len(agreements) if agreements else None,
        garbage=_known_mean([batch.garbage for batch in batches]),
        # Members whose logits are not finite have diverged without bound.
        divergence=float(np.nan_to_num(divergence, nan=math.inf)),
    )


def _known_mean(values: object) -> float:
    array = np.asarray(values, dtype=np.float64)
    known = array[~np.isnan(array)]
    return float(known.mean()) if len(known) else math.nan
