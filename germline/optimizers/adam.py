"""Adam as gradient ascent: every number moves by about the learning rate per step."""

import math

import torch

from germline import config
from germline.optimizers.base import AscentOptimizer
from germline.optimizers.fp32_arithmetic import (
    ScratchBuffers,
    flat_chunks,
    integer_power,
    round_to_fp32,
)


class Adam(AscentOptimizer):
    """Adam (Kingma and Ba, 2015, algorithm 1) as ascent, with t = step_index + 1.

        m <- beta1 m + (1 - beta1) g             v <- beta2 v + (1 - beta2) g^2
        theta <- theta + learning_rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)

    State keys are `<tensor>.m` and `<tensor>.v`, fp32.
    """

    def __init__(self, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        super().__init__("mv")
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon
        self._scratch = ScratchBuffers(torch.float32, torch.float32, torch.float64)

    @classmethod
    def from_config(cls, settings: config.Adam) -> "Adam":
        """Construct it from its config section."""
        return cls(settings.beta1, settings.beta2, settings.epsilon)

    def ascend(
        self,
        name: str,
        master: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
        step_index: int,
    ) -> None:
        """Move `master` uphill, in place; see `AscentOptimizer.ascend`."""
        t = step_index + 1
        keep_m, add_m = round_to_fp32(self._beta1), round_to_fp32(1 - self._beta1)
        keep_v, add_v = round_to_fp32(self._beta2), round_to_fp32(1 - self._beta2)
        rate = round_to_fp32(learning_rate / (1 - integer_power(self._beta1, t)))
        root = round_to_fp32(1 / math.sqrt(1 - integer_power(self._beta2, t)))
        epsilon = round_to_fp32(self._epsilon)
        for theta, g, m, v in flat_chunks(master, gradient, *self.moments_of(name, master)):
            change, denominator, wide = self._scratch.like(theta)
            torch.mul(m, keep_m, out=m)
            torch.mul(g, add_m, out=change)
            torch.add(m, change, out=m)
            torch.mul(v, keep_v, out=v)
            torch.mul(g, g, out=change)
            torch.mul(change, add_v, out=change)
            torch.add(v, change, out=v)
            wide.copy_(v)
            torch.sqrt(wide, out=wide)
            denominator.copy_(wide)
            torch.mul(denominator, root, out=denominator)
            torch.add(denominator, epsilon, out=denominator)
            torch.div(m, denominator, out=change)
            torch.mul(change, rate, out=change)
            torch.add(theta, change, out=theta)
