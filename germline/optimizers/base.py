"""What an optimizer does, and its state; `engines.master_weights.Masters` calls it per tensor."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping

import torch


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
            if kept.shape != master.shape:
                raise ValueError(
                    f"optimizer state {key!r} has shape {tuple(kept.shape)} but the tensor has "
                    f"{tuple(master.shape)}; the snapshot belongs to another model"
                )
            self.state[key] = kept.to(master.device)
        return [self.state[key] for key in keys]

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace the state by copies, made one by one; refuse that of another optimizer."""
        names = {key.rpartition(".")[0] for key in state}
        keys = {f"{name}.{letter}" for name in names for letter in self._letters}
        if other := keys ^ state.keys():
            raise ValueError(
                f"optimizer state {min(other)!r} is missing or of another optimizer; resume with "
                "the optimizer the run was started with"
            )
        self.state.clear()  # none is in memory twice
        for key in sorted(keys):
            tensor = state[key]
            if tensor.dtype != torch.float32:
                raise ValueError(f"optimizer state {key!r} is {tensor.dtype}, not torch.float32")
            self.state[key] = tensor.clone()


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
