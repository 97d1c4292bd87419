"""Which trials of a sweep are stopped, trained with more seeds, and tested.

- A trial has *collapsed* if a finding says that its answers are broken, whatever they earn, or if,
  without a clearly better score, many answers are empty, its weights walked to the edge at which
  random members break, or its KL divergence from the start is large (`kl_from_start`). One
  without any signal (`is_silent`) ends at its first rung likewise.
- *Successive halving*: after each rung, a trial goes on if it is among the best third of the trials
  of its sampler that have reached the rung so far (Li et al. 2018, arXiv 1810.05934, the variant
  that stops trials instead of pausing them).
- *Race*: complete trials that are not clearly worse than the best one get 2 and then 4 run seeds
  (Lindauer et al. 2022, arXiv 2109.09831). Clearly worse: by Wilcoxon's signed-rank test (1945)
  over the held-out examples of the run seeds that both have, and by more than the noise of these
  run seeds, once trials with several seeds show it.
"""

import math
from collections.abc import Sequence

import numpy as np

from germline.evaluation.score_difference import is_clearly_better
from germline.evaluation.statistics import Z_95
from germline.record.metrics_rows import calibrated_kl, signal
from germline.report.run_facts import RunFacts
from germline.report.text_format import number
from germline.studies.sweep_results import SweepResults, SweepTrial

REDUCTION = 3
"""Factor between rungs; the inverse is the share of trials that go on."""

COLLAPSES, UNLESS_BETTER = ("broken_answers", "collapse"), ("empty", "walk")
"""Findings of a collapse: always, and unless the score is clearly better than before training."""

MOST_KL = 0.1
"""Nats per token from the start that are a collapse likewise; see `studies.sigma_sweep.SANE_KL`."""

ALPHA = 0.05
"""Largest one-sided p-value of a trial that is clearly worse."""

MOST_RACED, TESTED = 6, 3
"""Largest number of trials with several seeds, and of trials that are tested."""


def rungs_of(limit: int, generation: int) -> list[int]:
    """Return the rungs of a trial, in rollouts, given its limit and those of a generation."""
    earlier = (limit // REDUCTION**2, limit // REDUCTION)
    return [*(rung for rung in earlier if rung >= 2 * generation), limit]


def collapse_of(run: RunFacts) -> str:
    """Return why a run that has scores has collapsed; empty if it has not."""
    is_better = is_clearly_better(run.scores[-1], run.scores[0])
    codes = COLLAPSES if is_better else (*COLLAPSES, *UNLESS_BETTER)
    if found := next((one for one in run.findings if one.code in codes), None):
        return found.sentence
    kl, of = kl_from_start(run)
    if is_better or not kl > MOST_KL:
        return ""
    return f"the KL divergence of {of} from the start is {number(kl)} nats per token"


def is_silent(run: RunFacts) -> bool:
    """Return whether no update of a run had a signal, and a sigma that grows may not give one."""
    return not run.config.search.grows_sigma and all(row["zero_signal"] for row in run.rows)


def kl_from_start(run: RunFacts) -> tuple[float, str]:
    """Return a KL divergence from the start that a run recorded, in nats per token, and of what.

    It is that of the completions of the last generation, where they are compared with the start
    (`task.kl_coef`, also 0, and `method.beta`); else that of random noise as long as the walk, by
    the calibration of sigma, which is above the true one; NaN where neither is known.
    """
    last = run.rows[-1] if run.rows else {}
    recorded = last.get("parts", {}).get("kl") if run.config.task.kl_per == "token" else None
    if (kl := last.get("kl", recorded)) is not None:
        return kl, "the completions"
    walk = signal(last, "walk") if last.get("signals") else None
    trials = [row for row in run.rows if "calibration" in row]
    kl = calibrated_kl(trials[-1], walk) if trials and walk else None
    return kl or math.nan, "noise as long as the walk"


def halving(score: float, peers: Sequence[float]) -> str:
    """Return why a trial ends at a rung, given its score and those of its peers there."""
    better = sum(one > score for one in peers)
    if better < max(1, (len(peers) + 1) // REDUCTION):
        return ""
    return f"{better} of {len(peers)} other trials were better"


def is_clearly_worse(trial: SweepTrial, best: SweepTrial, seed_variance: float = 0.0) -> bool:
    """Return whether the held-out answers of a trial are worse by more than chance explains.

    `seed_variance` is that of the scores of a trial over run seeds; 0 where it is not known.
    """
    seeds = trial.signed_scores.keys() & best.signed_scores.keys()
    if trial is best or not seeds:
        return False
    values, of_best = (one.by_example(seeds) for one in (trial, best))
    differences = (values - of_best)[np.isfinite(values - of_best)]
    gap = sum(best.signed_scores[seed] - trial.signed_scores[seed] for seed in seeds) / len(seeds)
    if gap <= Z_95 * math.sqrt(2 * seed_variance / len(seeds)) or not differences.any():
        return False
    from scipy.stats import wilcoxon  # takes half a second

    return bool(wilcoxon(differences, alternative="less", method="approx").pvalue < ALPHA)


def race(results: SweepResults, most: int) -> list[tuple[SweepTrial, int]]:
    """Return the trials that need more run seeds, and how many, up to `most`."""
    ranked, variance = results.ranked, results.seed_variance or 0.0
    for seeds in (2, 4):
        known = [one for one in ranked if len(one.signed_scores) >= seeds // 2]
        racing = [one for one in known if not is_clearly_worse(one, ranked[0], variance)]
        wanted = min(seeds, most)
        short = [one for one in racing[:MOST_RACED] if len(one.signed_scores) < wanted]
        if short and len(racing) > 1:
            return [(one, wanted) for one in short]
    return []


def trials_to_test(results: SweepResults) -> list[SweepTrial]:
    """Return the trials to test: the best three, and the best one of each sampler, best first.

    None if none is better than before training; of several objectives, the Pareto front alone.
    """
    ranked = [one for one in results.ranked if one in results.front and results.best]
    of_samplers = [*{one.sampler: one for one in reversed(ranked)}.values()]
    return [one for one in ranked if one in ranked[:TESTED] or one in of_samplers]
