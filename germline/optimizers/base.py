"""What an optimizer does, and its state; `Masters` calls it for every tensor."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping

import torch

from germline import registry
from germline.config import OptimizerConfig
from germline.optimizers.weight_decay import WeightDecay
from germline.types import Update


class AscentOptimizer(ABC):
    """Moves master weights along gradients; a run has one optimizer, with state per tensor.

    The state is fp32 tensors for every searched tensor, 0 before its first step, under the keys
    `<tensor>.<letter>` with each of the given letters.

    Attributes:
        decoupled_decay: the weight decay before each step; None: there is none.
    """

    decoupled_decay: WeightDecay | None = None

    def __init__(self, letters: str = "") -> None:
        self._letters = letters
        self.state: dict[str, torch.Tensor] = {}

    @property
    def bytes_per_number(self) -> int:
        """Size of the state per searched number."""
        return 4 * len(self._letters)

    def begin(self, masters: Mapping[str, torch.Tensor]) -> None:
        """Receive the starting weights, before any step and before any state is loaded.

        A resumed run calls this too, with the base model.
        """
        if self.decoupled_decay:
            self.decoupled_decay.begin(masters)

    def begin_update(self, update: Update) -> None:
        """Receive an update of seeds, before its step in any tensor."""
        if self.decoupled_decay:
            self.decoupled_decay.begin_update(update)

    def step(
        self,
        name: str,
        master: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
        step_index: int,
        unit: float = 1.0,
    ) -> None:
        """Let `master` decay, and move it uphill, in place.

        Args:
            name: canonical name of the tensor.
            master: fp32, contiguous.
            gradient: estimated gradient, of the same shape, dtype and device; not changed.
            learning_rate: positive values move towards higher fitness.
            step_index: index of the step in the run, from 0.
            unit: factor of the learning rate for this tensor.
        """
        _check_step_tensors(name, master, gradient)
        if self.decoupled_decay:
            self.decoupled_decay.move(name, master, learning_rate)
        self.ascend(name, master, gradient, learning_rate * unit, step_index)

    @abstractmethod
    def ascend(
        self,
        name: str,
        master: torch.Tensor,
        gradient: torch.Tensor,
        learning_rate: float,
        step_index: int,
    ) -> None:
        """Move `master` as `step` does, with a learning rate that has the unit of its tensor."""

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


def _check_step_tensors(name: str, master: torch.Tensor, gradient: torch.Tensor) -> None:
    """Raise for tensors that a step would silently cast, broadcast or copy."""
    for role, tensor in (("master", master), ("gradient", gradient)):
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise ValueError(
                f"{role} of {name!r} is {tensor.dtype}, contiguous={tensor.is_contiguous()}; "
                "steps need contiguous torch.float32"
            )
    if master.shape != gradient.shape or master.device != gradient.device:
        raise ValueError(
            f"gradient of {name!r} is {tuple(gradient.shape)} on {gradient.device} but the master "
            f"is {tuple(master.shape)} on {master.device}; they must agree"
        )


def make_optimizer(config: OptimizerConfig, *, keeps_start: bool = False) -> AscentOptimizer:
    """Construct the optimizer that a config section names, with its weight decay.

    Args:
        config: the section.
        keeps_start: whether updates may have a decay of their own.
    """
    optimizer: AscentOptimizer = registry.create("optimizer", config)
    if config.weight_decay or keeps_start:
        optimizer.decoupled_decay = WeightDecay(config, keeps_start=keeps_start)
    return optimizer
