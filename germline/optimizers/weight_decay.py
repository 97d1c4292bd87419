"""Weight decay around any optimizer: towards zero, or towards the starting weights of the run."""

from collections.abc import Mapping

import torch

from germline.optimizers.base import AscentOptimizer
from germline.optimizers.fp32_arithmetic import (
    ScratchBuffers,
    check_step_tensors,
    flat_chunks,
    round_to_fp32,
)


class WeightDecay(AscentOptimizer):
    """Decoupled weight decay: moves theta towards an anchor before each step of an optimizer.

        theta <- theta - learning_rate * weight_decay * (theta - anchor)

    Decoupled (Loshchilov and Hutter 2019, arXiv 1711.05101) means that the gradient and its moments
    do not contain the decay; it also acts in generations without a signal. The anchor is 0, or the
    starting weights, which counters the forgetting that arXiv 2605.30148 describes. The decay rate
    is a fraction of the distance, so it is not multiplied by the unit of the learning rate.

    A resumed run copies the starting weights from the base model, which it loads first. Snapshots,
    digests and the journal do not contain them; the copy is in bf16 or fp16 if that is exact.
    """

    def __init__(self, inner: AscentOptimizer, weight_decay: float, *, to_start: bool) -> None:
        super().__init__()
        self._inner = inner
        self.state = inner.state
        self._weight_decay = weight_decay
        self._to_start = to_start
        self._anchors: dict[str, torch.Tensor] = {}
        self._scratch = ScratchBuffers(torch.float32, torch.float32)

    @property
    def bytes_per_number(self) -> int:
        """Size of the state per searched number; the anchor is not state, as it never changes."""
        return self._inner.bytes_per_number

    def begin(self, masters: Mapping[str, torch.Tensor]) -> None:
        """Copy the starting weights if they are the anchor."""
        self._inner.begin(masters)
        if self._to_start:
            self._anchors = {name: _copy(master) for name, master in masters.items()}

    def step(
        self,
        name: str,
        master: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
        step_index: int,
        unit: float = 1.0,
    ) -> None:
        """Move `master` towards its anchor, then uphill; see `AscentOptimizer.step`."""
        check_step_tensors(name, master, gradient)
        share = round_to_fp32(-learning_rate * self._weight_decay)
        if self._to_start:
            self._draw_to_start(name, master, share)
        else:
            for (theta,) in flat_chunks(master):
                change, _ = self._scratch.like(theta)
                torch.mul(theta, share, out=change)
                torch.add(theta, change, out=theta)
        self._inner.step(name, master, gradient, learning_rate, step_index, unit)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace the state of the other optimizer."""
        self._inner.load_state_dict(state)

    def _draw_to_start(self, name: str, master: torch.Tensor, share: float) -> None:
        if name not in self._anchors:
            raise ValueError(
                f"decay_to=start: the starting weights of {name!r} are not known; call "
                "begin(masters) before the first step"
            )
        for theta, narrow in flat_chunks(master, self._anchors[name]):
            change, anchor = self._scratch.like(theta)
            anchor.copy_(narrow)  # exact: `_copy` narrows only if no bit is lost
            torch.sub(theta, anchor, out=change)
            torch.mul(change, share, out=change)
            torch.add(theta, change, out=theta)


def _copy(master: torch.Tensor) -> torch.Tensor:
    """Copy to the narrowest dtype that represents every number exactly."""
    for dtype in (torch.bfloat16, torch.float16):
        narrow = master.to(dtype)
        if torch.equal(narrow.float(), master):
            return narrow
    return master.clone()
