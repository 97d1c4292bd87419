"""What an optimizer does, its state, and weight decay; `Masters` calls it for every tensor."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping

import torch

from germline import registry
from germline.config import OptimizerConfig
from germline.optimizers.fp32_arithmetic import (
    ScratchBuffers,
    check_step_tensors,
    flat_chunks,
    round_to_fp32,
)
from germline.types import Update


class AscentOptimizer(ABC):
    """Moves master weights along gradients; a run has one optimizer, with state per tensor.

    The state is fp32 tensors for every searched tensor, 0 before its first step, under the keys
    `<tensor>.<letter>` with each of the given letters.
    """

    def __init__(self, letters: str = "") -> None:
        self._letters = letters
        self.state: dict[str, torch.Tensor] = {}

    @property
    def bytes_per_number(self) -> int:
        """Size of the state per searched number."""
        return 4 * len(self._letters)

    def begin(self, masters: Mapping[str, torch.Tensor]) -> None:  # noqa: B027 - most use none
        """Receive the starting weights, before any step and before any state is loaded.

        A resumed run calls this too, with the base model.
        """

    def begin_update(self, update: Update) -> None:  # noqa: B027 - most use none
        """Receive an update of seeds, before its step in any tensor."""

    @abstractmethod
    def step(
        self,
        name: str,
        master: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
        step_index: int,
        unit: float = 1.0,
    ) -> None:
        """Move `master` uphill, in place.

        Args:
            name: canonical name of the tensor.
            master: fp32, contiguous.
            gradient: estimated gradient, of the same shape, dtype and device; not changed.
            learning_rate: positive values move towards higher fitness.
            step_index: index of the step in the run, from 0.
            unit: factor of the learning rate for this tensor.
        """

    def moments_of(self, name: str, master: torch.Tensor) -> list[torch.Tensor]:
        """Return the moments of a tensor, one per letter, on its device."""
        keys = [f"{name}.{letter}" for letter in self._letters]
        for key in keys:
            kept = self.state[key] if key in self.state else torch.zeros_like(master)
            self.state[key] = kept.to(master.device)
        return [self.state[key] for key in keys]

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace the state by copies, made one by one; its digest was compared before."""
        self.state.clear()  # none is in memory twice
        for key in sorted(state):
            self.state[key] = state[key].clone()


class StoredState(Mapping[str, torch.Tensor]):
    """Tensors of a snapshot, each read when it is asked for.

    A snapshot is as large as masters and moments, so it is never held in memory.
    """

    def __init__(self, read: Callable[[str], torch.Tensor], names: Collection[str]) -> None:
        self._read = read
        self._names = frozenset(names)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __len__(self) -> int:
        return len(self._names)


class WeightDecay(AscentOptimizer):
    """Decoupled weight decay: moves theta towards an anchor before each step of an optimizer.

        theta <- theta - learning_rate * weight_decay * (theta - anchor)

    Decoupled (Loshchilov and Hutter 2019, arXiv 1711.05101) means that the gradient and its moments
    do not contain the decay; it also acts in generations without a signal. The anchor is 0, or the
    starting weights, which counters the forgetting that arXiv 2605.30148 describes. The decay rate
    is a fraction of the distance, so it is not multiplied by the unit of the learning rate.

    With `decay_per: step`, the length s of the step in sigmas takes the place of the learning rate,
    and theta does not move beyond its anchor. The square of what many steps add up by chance then
    ends near s / (2 weight_decay), in sigmas, however rewards are shaped.

    A resumed run copies the starting weights from the base model, which it loads first. Snapshots,
    digests and the journal do not contain them; the copy is in bf16 or fp16 if that is exact.
    """

    def __init__(self, inner: AscentOptimizer, settings: OptimizerConfig) -> None:
        super().__init__()
        self._inner = inner
        self._settings = settings
        self.state = inner.state
        self._step_in_sigmas = 0.0
        self._anchors: dict[str, torch.Tensor] = {}
        self._scratch = ScratchBuffers(torch.float32, torch.float32)

    @property
    def bytes_per_number(self) -> int:
        """Size of the state per searched number; the anchor is not state, as it never changes."""
        return self._inner.bytes_per_number

    def begin(self, masters: Mapping[str, torch.Tensor]) -> None:
        """Copy the starting weights if they are the anchor."""
        self._inner.begin(masters)
        if self._settings.decays_to_start:
            self._anchors = {name: _copy(master) for name, master in masters.items()}

    def begin_update(self, update: Update) -> None:
        """Take the length of its step."""
        self._inner.begin_update(update)
        self._step_in_sigmas = update.step_in_sigmas or 0.0

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
        by_step, weight_decay = self._settings.decay_per == "step", self._settings.weight_decay
        limited = min(1.0, self._step_in_sigmas * weight_decay)
        share = round_to_fp32(-(limited if by_step else learning_rate * weight_decay))
        anchors = [self._anchors[name]] if self._settings.decays_to_start else []
        for theta, *narrow in flat_chunks(master, *anchors):
            change, anchor = self._scratch.like(theta)
            if narrow:
                anchor.copy_(narrow[0])  # exact: `_copy` narrows only if no bit is lost
                torch.sub(theta, anchor, out=change)
            torch.mul(change if narrow else theta, share, out=change)
            torch.add(theta, change, out=theta)
        self._inner.step(name, master, gradient, learning_rate, step_index, unit)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace the state of the other optimizer."""
        self._inner.load_state_dict(state)


def _copy(master: torch.Tensor) -> torch.Tensor:
    """Copy to the narrowest dtype that represents every number exactly."""
    for dtype in (torch.bfloat16, torch.float16):
        narrow = master.to(dtype)
        if torch.equal(narrow.float(), master):
            return narrow
    return master.clone()


def make_optimizer(config: OptimizerConfig) -> AscentOptimizer:
    """Construct the optimizer that a config section names, with its weight decay."""
    plain: AscentOptimizer = registry.create("optimizer", config)
    return WeightDecay(plain, config) if config.weight_decay else plain
