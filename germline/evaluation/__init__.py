"""Evaluation: held-out scores, divergence from the start model, and behavior of answers.

statistics.py        intervals and tests over examples, statistics over run seeds, pass@k
held_out.py          held-out scores of the center, by the task and by scorers, with intervals
score_difference.py  difference of two scores on the same examples, and a score that declines
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
