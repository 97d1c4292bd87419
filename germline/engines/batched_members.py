"""Members in the forward pass: forwards of modules that compute several members in one batch.

Rows of a batch are ordered by member, with the same number for each.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from germline.engines.master_weights import Masters
from germline.engines.model_tensors import replaced_forwards
from germline.protocols import Members


class MemberForward(ABC):
    """The forward of a module while members are in the batch."""

    module: nn.Module

    @abstractmethod
    def bind(self, drawn: Mapping[str, Tensor]) -> None:
        """Use the tensors `[members, ...]` of the members now in the batch."""

    @abstractmethod
    def __call__(self, inputs: Tensor) -> Tensor:
        """Compute the output of the module for the rows of all members."""


class BatchMembers:
    """How members of one family run in the forward pass; this base class has the center alone.

    Attributes:
        together: how many members run at once, at most; None: all.
        forwards: those that replace the model's while members are in the batch.
        drawn: tensors `[members, ...]` of the members now in the batch, by name.
    """

    together: int | None = None
    forwards: Sequence[MemberForward] = ()

    def __init__(self, serving: Mapping[str, Tensor], masters: Masters) -> None:
        self.masters = masters
        self.like = next(iter(serving.values()))
        self.drawn: dict[str, Tensor] = {}

    def draw(self, members: Members) -> dict[str, Tensor]:
        """Return the tensors of members; none where the model itself is all of them."""
        assert not any(members), "without a space, the center alone can be evaluated"
        return {}

    @contextmanager
    def applied(self, members: Members) -> Iterator[None]:
        """Let the model compute these members during a `with` block; None is the center."""
        self.drawn = self.draw(members)
        if not self.drawn:
            yield
            return
        self.bind()
        try:
            with replaced_forwards([(one.module, one) for one in self.forwards]):
                yield
        finally:
            self.drawn = {}

    def keep(self, members: Tensor) -> None:
        """Drop all other members from the batch: their rows are finished."""
        self.drawn = {name: rows[members] for name, rows in self.drawn.items()}
        self.bind()

    def bind(self) -> None:
        """Give the members now in the batch to the forwards."""
        for forward in self.forwards if self.drawn else ():
            forward.bind(self.drawn)
