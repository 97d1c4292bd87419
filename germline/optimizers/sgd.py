"""SGD as gradient ascent, with or without momentum."""

from collections.abc import Mapping

import torch

from germline import config
from germline.optimizers.fp32_arithmetic import (
    ScratchBuffers,
    check_step_tensors,
    copy_of_state,
    flat_chunks,
    round_to_fp32,
    zeros_for_state,
)


class Sgd:
    """Gradient ascent with Polyak's (1964) momentum, in the form that `torch.optim.SGD` has.

        v <- momentum v + g                      v is 0 before the first step
        theta <- theta + learning_rate * v

    Along a constant gradient the step grows to 1 / (1 - momentum) times its size. Without momentum
    there is no v and no state: theta <- theta + learning_rate * g. With momentum, state keys are
    `<tensor>.m`, fp32.
    """

    def __init__(self, momentum: float = 0.0) -> None:
        self._momentum = momentum
        self._velocities: dict[str, torch.Tensor] = {}
        self._scratch = ScratchBuffers(torch.float32)

    @classmethod
    def from_config(cls, settings: config.Sgd) -> "Sgd":
        """Construct it from its config section."""
        return cls(settings.momentum)

    @property
    def bytes_per_number(self) -> int:
        """Size of the state per searched number."""
        return 4 if self._momentum else 0

    def begin(self, masters: Mapping[str, torch.Tensor]) -> None:
        """Do nothing: the optimizer does not use the starting weights."""

    def step(
        self,
        name: str,
        master: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
        step_index: int,
        unit: float = 1.0,
    ) -> None:
        """Move `master` uphill, in place; see `AscentOptimizer.step`."""
        check_step_tensors(name, master, gradient)
        if self._momentum:
            gradient = self._gathered(name, gradient)
        rate = round_to_fp32(learning_rate * unit)
        for theta, g in flat_chunks(master, gradient):
            (change,) = self._scratch.like(theta)
            torch.mul(g, rate, out=change)
            torch.add(theta, change, out=theta)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the velocities, sorted by key; not copies."""
        return {f"{name}.m": self._velocities[name] for name in sorted(self._velocities)}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace the velocities by copies of those given; refuse another optimizer's state."""
        if state and not self._momentum:
            raise ValueError(
                f"optimizer=sgd has no state but was given {sorted(state)[0]!r}; "
                "resume with the optimizer the run was started with"
            )
        if other := [key for key in state if not key.endswith(".m")]:
            raise ValueError(
                f"optimizer state {min(other)!r} is not a momentum <tensor>.m; resume with the "
                "optimizer the run was started with"
            )
        self._velocities = {}  # none is in memory twice
        for key in state:
            self._velocities[key.removesuffix(".m")] = copy_of_state(state, key)

    def _gathered(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Add the gradient to the velocity of its tensor, and return the velocity."""
        if name not in self._velocities:
            self._velocities[name] = torch.zeros_like(gradient)
        velocity = self._velocities[name] = zeros_for_state(name, self._velocities[name], gradient)
        momentum = round_to_fp32(self._momentum)
        for v, g in flat_chunks(velocity, gradient):
            torch.mul(v, momentum, out=v)
            torch.add(v, g, out=v)
        return velocity
