"""Evaluation: held-out scores, divergence from the start model, and behavior of answers.

statistics.py        bootstrap intervals, tests of pairs, pass@k, and rliable's figures over seeds
held_out.py          held-out scores of the center, by the task and by scorers, with intervals
score_difference.py  difference of two scores on the same examples, and a score that declines
seed_statistics.py   statistics over several run seeds of one config
kl_divergence.py     exact KL from the start model, and that of members from the center
behavior.py          detectors of answers that are broken or changed, and a verdict
"""

from germline.evaluation.held_out import (
    HELD_OUT_NOISE,
    confidence_interval,
    mean_and_error,
    score_center,
)

__all__ = ["HELD_OUT_NOISE", "confidence_interval", "mean_and_error", "score_center"]
