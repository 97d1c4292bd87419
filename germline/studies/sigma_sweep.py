"""Measure members at sigmas over several decades: whether they are sane, and their signal.

A few members are evaluated on a few batches. Sanity is measured by degenerate texts and by the
exact KL divergence from the base model, difference by the rewards, and signal by the agreement of
the updates that two halves of the examples give.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from germline.evaluation.behavior import Answer, behavior
from germline.evaluation.kl_divergence import KlDivergence, measure_texts
from germline.protocols import Strategy
from germline.report.text_format import number
from germline.shaping import RESOLUTION, fitness
from germline.signal_metrics import half_agreement, informative_examples
from germline.studies.trial_engine import TrialEngine
from germline.types import Completion, GermlineError, Perturbation

MEMBERS = 8
"""Largest number of members at one sigma."""

BATCHES = 2
"""Batches at one sigma, each with different directions."""

MOST_EXAMPLES = 32
"""Largest number of examples of a batch that are evaluated."""

SANE_KL = 0.1
"""Nats per token; a little above it, members of nano write degenerate texts (measured)."""

SANE_GARBAGE = 0.1
"""Largest share of degenerate texts of sane members, beyond that of the center."""

DECADES = 4
"""Sigmas are tried from 1e-4 to 1 times the size of the weights."""


@dataclass(frozen=True, slots=True)
class SigmaProbe:
    """Measurements of members at one sigma, or of the center (0): means over the batches.

    Attributes:
        spread: standard deviation of the members' fitness.
        informative: share of the examples on which members differ.
        agreement: cosine of the updates that two halves of the examples give; None without one.
        garbage: share of degenerate texts: `broken` of `evaluation.behavior`.
        divergence: exact KL from the base model per token of the members' texts, in nats.
    """

    sigma: float
    reward: float
    spread: float
    informative: float
    agreement: float | None
    garbage: float
    divergence: float

    def __str__(self) -> str:
        """Describe the measurement in a line."""
        text = (
            f"reward {number(self.reward)}, {self.garbage:.0%} degenerate texts, "
            f"KL {self.divergence:.2g} nats per token"
        )
        if self.sigma:
            text += f", members differ on {self.informative:.0%} of the examples"
        if self.agreement is not None:
            text += f", agreement of halves {self.agreement:.2f}"
        return text


def is_sane(sigma_probe: SigmaProbe, center: SigmaProbe) -> bool:
    """Return whether members still write like the base model.

    Their reward must not have collapsed either, that is, be below the center's by more than twice
    its spread over members. If all members are alike, both means differ by rounding only.
    """
    rounding = RESOLUTION * max(abs(center.reward), abs(sigma_probe.reward))
    return (
        sigma_probe.divergence <= SANE_KL
        and sigma_probe.garbage <= center.garbage + SANE_GARBAGE
        and not center.reward - sigma_probe.reward > 2 * sigma_probe.spread + rounding
    )


def sigma_ladder(size: float) -> list[float]:
    """List sigmas in half decades, in round numbers, up to the size of the weights."""
    top = math.ceil(2 * math.log10(size) - 1e-9)
    halves = [divmod(place, 2) for place in range(top - 2 * DECADES, top + 1)]
    return [float(f"{'3' if half else '1'}e{decade}") for decade, half in halves]


def sweep(
    bench: TrialEngine, center: SigmaProbe, until: float, watch: Callable[[str], None]
) -> list[SigmaProbe]:
    """Measure members at growing sigmas, until they are broken at two in a row.

    Time may not run out before: no sigma is begun after `until` of `time.perf_counter`.
    """
    probes: list[SigmaProbe] = []
    for sigma in sigma_ladder(bench.size()):
        if probes and time.perf_counter() > until:
            raise GermlineError(
                f"probe: --minutes ran out at sigma {probes[-1].sigma:g}, before the sigma at "
                "which members break was known: allow more, or use a smaller batch"
            )
        watch(f"sigma {sigma:g}")
        probes.append(probe_sigma(bench, sigma))
        watch(f"sigma {sigma:g}: {probes[-1]}")
        if len(probes) > 1 and not any(is_sane(one, center) for one in probes[-2:]):
            break
    return probes


def find_edge(sigma_probes: Sequence[SigmaProbe], center: SigmaProbe) -> float:
    """Return the sigma at which members begin to break, between the last sane one and the next.

    The KL grows like a power of sigma, so it is interpolated linearly in logarithms. If another
    criterion fails first, or a KL is 0, the edge is assumed to be halfway. At least one sigma is
    sane.
    """
    sane = [place for place, one in enumerate(sigma_probes) if is_sane(one, center)]
    below, *rest = sigma_probes[sane[-1] :]
    if not rest:
        return below.sigma
    above, share = rest[0], 0.5
    if 0 < below.divergence < SANE_KL < above.divergence < math.inf:
        share = math.log(SANE_KL / below.divergence) / math.log(above.divergence / below.divergence)
    return below.sigma * (above.sigma / below.sigma) ** share


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
    answers = [
        Answer(example.prompt, completion, example.answer, reading.improbable)
        for texts, read in zip(written, rows, strict=True)
        for example, completion, reading in zip(examples, texts, read, strict=True)
    ]
    return SigmaProbe(
        sigma=0.0,
        reward=_known_mean(evaluation.rewards),
        spread=float(np.nanstd(fitness(evaluation.rewards))),
        informative=informative_examples(evaluation.rewards),
        agreement=agreement,
        garbage=behavior(answers, special_ids=bench.reader.special_ids)["broken"],
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
