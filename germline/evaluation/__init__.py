"""What a model is worth, how far it went from where it began, and how its texts go wrong.

held_out.py      held-out scores of the center, with standard errors and intervals over examples
kl_divergence.py  exact KL to the start model on texts that were written
degenerate_text.py   texts that are no answers: empty, special tokens alone, loops, improbable ones
"""

from germline.evaluation.held_out import (
    HELD_OUT_NOISE,
    confidence_interval,
    mean_and_error,
    score_center,
)

__all__ = ["HELD_OUT_NOISE", "confidence_interval", "mean_and_error", "score_center"]
