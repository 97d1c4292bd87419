"""The weights of one engine that an endpoint offers by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from germline.endpoint.http_app import RequestError
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


def unknown_model(name: str, known: str) -> RequestError:
    """Return the refusal of a name that no weights have; `known` lists the names."""
    return RequestError(
        404,
        f"the model {name[:100]!r} does not exist; this server has {known}",
        param="model",
        code="model_not_found",
    )


class MemberWeights:
    """The members of a population that is being evaluated; the center does not change.

    Args:
        engine: belongs to a training run, which closes it.
        members: by name; None is the center.
    """

    engine_kind = "of this run"

    def __init__(self, engine: Engine, members: Mapping[str, Perturbation | None]) -> None:
        self.engine = engine
        self._members = members

    def names(self) -> Sequence[str]:
        """Return the names of the members, or of the center."""
        return list(self._members)

    def select(self, name: str) -> SelectedWeights:
        """Return the weights of a name; it stands for the digest, which would take time.

        Raises:
            RequestError: there are none.
        """
        if name not in self._members:
            first, *rest = self._members
            raise unknown_model(name, f"{first} to {rest[-1]}" if rest else first)
        return SelectedWeights(-1, self._members[name], name)

    def load(self, selected: SelectedWeights) -> None:
        """Do nothing: the engine has the center."""

    def close(self) -> None:
        """Leave the engine to the run."""
