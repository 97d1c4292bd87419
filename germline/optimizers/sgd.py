"""SGD as gradient ascent, with or without momentum."""

import torch

from germline import config
from germline.optimizers.base import AscentOptimizer
from germline.optimizers.fp32_arithmetic import (
    ScratchBuffers,
    flat_chunks,
    round_to_fp32,
)


class Sgd(AscentOptimizer):
    """Gradient ascent with Polyak's (1964) momentum, in the form that `torch.optim.SGD` has.

        v <- momentum v + g                      v is 0 before the first step
        theta <- theta + learning_rate * v

    Along a constant gradient the step grows to 1 / (1 - momentum) times its size. Without momentum
    there is no v and no state: theta <- theta + learning_rate * g. With momentum, state keys are
    `<tensor>.m`, fp32.
    """

    def __init__(self, momentum: float = 0.0) -> None:
        super().__init__("m" if momentum else "")
        self._momentum = momentum
        self._scratch = ScratchBuffers(torch.float32)

    @classmethod
    def from_config(cls, settings: config.Sgd) -> "Sgd":
        """Construct it from its config section."""
        return cls(settings.momentum)

    def ascend(
        self,
        name: str,
        master: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
        step_index: int,
    ) -> None:
        """Move `master` uphill, in place; see `AscentOptimizer.ascend`."""
        if self._momentum:
            gradient = self._gathered(name, gradient)
        rate = round_to_fp32(learning_rate)
        for theta, g in flat_chunks(master, gradient):
            (change,) = self._scratch.like(theta)
            torch.mul(g, rate, out=change)
            torch.add(theta, change, out=theta)

    def _gathered(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Add the gradient to the velocity of its tensor, and return the velocity."""
        (velocity,) = self.moments_of(name, gradient)
        momentum = round_to_fp32(self._momentum)
        for v, g in flat_chunks(velocity, gradient):
            torch.mul(v, momentum, out=v)
            torch.add(v, g, out=v)
        return velocity
