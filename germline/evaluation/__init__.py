"""What a model is worth, how far it went from where it began, and how its texts go wrong.

scores.py      held-out scores of the centre, with standard errors and intervals over examples
divergence.py  exact KL to the start model on texts that were written
behaviour.py   texts that are no answers: empty, special tokens alone, loops, improbable ones
"""

from germline.evaluation.scores import HELD_OUT_NOISE, held_out, interval, mean_and_error

__all__ = ["HELD_OUT_NOISE", "held_out", "interval", "mean_and_error"]
