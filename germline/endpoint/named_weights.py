"""The weights of one engine that an endpoint offers by name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from germline.protocols import Engine
from germline.types import Perturbation


@dataclass(frozen=True)
class SelectedWeights:
    """What a model name stands for.

    Attributes:
        generation: the last update in the weights; -1 or less where that is no generation.
        member: the perturbation of these weights; None: they are not perturbed.
        fingerprint: names these weights in responses.
    """

    generation: int
    member: Perturbation | None
    fingerprint: str


@runtime_checkable
class NamedWeights(Protocol):
    """An engine and the names of its weights.

    `names` and `select` may be called from any thread; `load` and `close` from the one that uses
    the engine.
    """

    @property
    def engine(self) -> Engine:
        """The engine, which holds the unperturbed weights of one name at a time."""

    @property
    def engine_kind(self) -> str:
        """The `engine.kind` of the config, for errors."""

    def names(self) -> Sequence[str]:
        """Return the names of all weights without perturbation."""

    def select(self, name: str) -> SelectedWeights:
        """Return the weights of a name.

        Raises:
            RequestError: there are none.
        """

    def load(self, selected: SelectedWeights) -> None:
        """Let the engine have the unperturbed weights of a selection.

        Raises:
            GermlineError: they cannot be loaded.
        """

    def close(self) -> None:
        """Give the engine back."""
