"""Samples of the center, and what they count for after updates of the center.

GRPO's objective of a token that was sampled with the probability p_0, with the advantage A, is

    (1)  min(rho A, clip(rho, 1 - clip, 1 + clip) A)      rho = p / p_0

Its derivative is rho A d log p, and 0 where the minimum is the clipped one: a token then has gone
far enough (Schulman et al. 2017, arXiv 1707.06347). At the weights that sampled, rho is 1.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from germline.episodes import model_turns
from germline.protocols import Fleet, Members, ScoringGroup
from germline.types import Completion, Evaluation, Example

LogProbs = Mapping[int, Float64[np.ndarray, " tokens"]]


@dataclass(frozen=True)
class SampledRow:
    """A sample of the center with an advantage.

    Attributes:
        number: of the sample, `examples x samples`.
        place: of its example in the batch.
        texts: what the model wrote, each after what came before it; several in an episode.
        advantage: of the sample.
    """

    number: int
    place: int
    texts: Sequence[tuple[Example, Completion]]
    advantage: float


@dataclass(frozen=True)
class SampledBatch:
    """What the center sampled.

    Attributes:
        samples: the completions, and their rewards.
        advantages: of all samples.
        rows: the samples with an advantage, those of an example side by side.
        log_probs: of the tokens of every row under the center that sampled them, by its number;
            empty where one update uses them.
    """

    samples: Evaluation
    advantages: Float64[np.ndarray, "samples examples"]
    rows: Sequence[SampledRow]
    log_probs: LogProbs

    def log_ratios(self, center: LogProbs) -> LogProbs:
        """Return the logarithms of rho of equation (1), given log-probabilities of some rows."""
        if not self.log_probs:
            return {number: np.zeros(len(now)) for number, now in center.items()}
        return {number: now - self.log_probs[number] for number, now in center.items()}


def rows_with_advantage(
    samples: Evaluation,
    advantages: Float64[np.ndarray, "samples examples"],
    batch: Sequence[Example],
    *,
    mask_truncated: bool,
) -> list[SampledRow]:
    """Return the samples with an advantage, and with tokens that are not masked."""
    count, examples = advantages.shape
    rows = []
    for number in np.flatnonzero(advantages.T):
        place, sample = divmod(int(number), count)
        rollout = samples.rollouts[sample * examples + place]
        masked = mask_truncated and rollout.completion.finish == "length"
        if rollout.completion.tokens and not masked:
            texts = [turn for turn in model_turns(batch[place], rollout) if turn[1].tokens]
            rows.append(SampledRow(int(number), place, texts, float(advantages[sample, place])))
    return rows


def scoring_group(members: Members, rows: Collection[SampledRow]) -> ScoringGroup:
    """Return what members read to score rows."""
    texts = [text for row in rows for text in row.texts]
    return ScoringGroup(members, [asked for asked, _ in texts], [written for _, written in texts])


def row_log_probs(scores: Sequence[Sequence[float]], rows: Collection[SampledRow]) -> LogProbs:
    """Join the log-probabilities of the texts of each row."""
    texts = iter(scores)
    return {row.number: np.concatenate([next(texts) for _ in row.texts]) for row in rows}


def center_log_probs(fleet: Fleet, rows: Collection[SampledRow]) -> LogProbs:
    """Let the center score rows."""
    return row_log_probs(fleet.score([scoring_group((None,), rows)])[0], rows) if rows else {}


def clipped_ratios(
    log_ratios: Float64[np.ndarray, " tokens"], advantage: float, clip: float | None
) -> Float64[np.ndarray, " tokens"]:
    """Return the weight of A d log p in the derivative of equation (1); without clip, rho."""
    ratios: Float64[np.ndarray, " tokens"] = np.exp(log_ratios)
    if clip is None:
        return ratios
    is_far = ratios > 1 + clip if advantage > 0 else ratios < 1 - clip
    return np.where(is_far, 0.0, ratios)


def ratio_metrics(log_ratios: LogProbs, counts: LogProbs) -> dict[str, float]:
    """Return the share of tokens that do not count, and the KL divergence from the sampler.

    Args:
        log_ratios: logarithms of rho of equation (1).
        counts: what each token counts.
    """
    changes = np.concatenate([*log_ratios.values()])
    return {
        "clipped": float(np.mean(np.concatenate([*counts.values()]) == 0)),
        "sampler_kl": float(np.mean(np.expm1(changes) - changes)),
    }
