"""What members are like at one sigma: still sane, already different, telling better from worse.

A handful of members plays a few batches. Sanity is judged by their texts and by the exact KL to the
start; difference by their rewards; signal by whether two halves of the examples agree on where to
go.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from germline.evaluation.degenerate_text import DegenerateTextShares, degenerate_text_shares
from germline.evaluation.kl_divergence import KlDivergence, measure_texts
from germline.protocols import Strategy
from germline.shaping import fitness
from germline.signal_metrics import half_agreement, informative_examples
from germline.studies.trial_engine import TrialEngine
from germline.types import Completion, Evaluation, Perturbation

MEMBERS = 8
"""Most members at one sigma."""

BATCHES = 2
"""Batches at one sigma, each with directions of its own."""

MOST_EXAMPLES = 32
"""Most examples of a batch that are played."""


@dataclass(frozen=True, slots=True)
class SigmaProbe:
    """Members at one sigma, or the center: means over the batches they played.

    Attributes:
        sigma: in `strategy.sigma_unit`; 0 is the center.
        reward: mean over members and examples.
        spread: standard deviation of the members' fitness.
        informative: share of the examples on which members differ.
        agreement: cosine of the updates that two halves of the examples give; None without one.
        garbage: share of texts that are no answers, see `evaluation.degenerate_text`.
        divergence: exact KL to the start per token of the members' texts, in nats.
    """

    sigma: float
    reward: float
    spread: float
    informative: float
    agreement: float | None
    garbage: float
    divergence: float


def probe_sigma(bench: TrialEngine, sigma: float) -> SigmaProbe:
    """Play a few batches with members at one sigma."""
    strategy = bench.directions(sigma, MEMBERS, BATCHES)
    return _mean(sigma, [_played(bench, strategy, place) for place in range(BATCHES)])


def probe_center(bench: TrialEngine) -> SigmaProbe:
    """Play the same batches with the center alone."""
    return _mean(0.0, [_played(bench, None, place) for place in range(BATCHES)])


def _played(bench: TrialEngine, strategy: Strategy | None, place: int) -> SigmaProbe:
    examples = bench.batch_of(place)[:MOST_EXAMPLES]
    agreed = None
    members: list[Perturbation | None] = [None]
    if strategy is None:
        evaluation = bench.fleet.evaluate_center(examples, bench.decoding)
    else:
        population = strategy.ask(place)
        members = [*population.members]
        evaluation = bench.fleet.evaluate(population, examples, bench.decoding)
        agreed = half_agreement(population, evaluation, bench.shape)
    written = _written(evaluation, len(members))
    looked, divergence = _read(bench, members, written, place)
    return SigmaProbe(
        sigma=0.0,
        reward=_known_mean(evaluation.rewards),
        spread=float(np.std(_known(fitness(evaluation.rewards)))),
        informative=informative_examples(evaluation.rewards),
        agreement=agreed,
        garbage=looked.garbage,
        divergence=divergence.per_token,
    )


def _read(
    bench: TrialEngine,
    members: Sequence[Perturbation | None],
    written: Sequence[Sequence[Completion]],
    place: int,
) -> tuple[DegenerateTextShares, KlDivergence]:
    examples = bench.batch_of(place)[:MOST_EXAMPLES]
    rows = measure_texts(bench.reader, bench.reader, members, examples, written)
    readings = [one for row in rows for one in row]
    texts = [one for row in written for one in row]
    unlikely = [one.improbable for one in readings]
    return degenerate_text_shares(texts, bench.reader.special_ids, unlikely), KlDivergence.of(
        readings
    )


def _written(evaluation: Evaluation, members: int) -> list[list[Completion]]:
    rows: list[list[Completion]] = [[] for _ in range(members)]
    for rollout in evaluation.rollouts:
        rows[rollout.member].append(rollout.completion)
    return rows


def _mean(sigma: float, played: Sequence[SigmaProbe]) -> SigmaProbe:
    agreed = [one.agreement for one in played if one.agreement is not None]
    return SigmaProbe(
        sigma=sigma,
        reward=_known_mean([one.reward for one in played]),
        spread=_known_mean([one.spread for one in played]),
        informative=_known_mean([one.informative for one in played]),
        agreement=math.fsum(agreed) / len(agreed) if agreed else None,
        garbage=_known_mean([one.garbage for one in played]),
        # Members that are no numbers any more have diverged without bound.
        divergence=float(np.nan_to_num(np.mean([one.divergence for one in played]), nan=math.inf)),
    )


def _known(values: object) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64).ravel()
    return array[~np.isnan(array)]


def _known_mean(values: object) -> float:
    known = _known(values)
    return float(known.mean()) if len(known) else math.nan
