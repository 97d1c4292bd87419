"""Members that differ in coordinates: a frozen matrix M acts as M + A diag(z) B^T.

A and B are the same for all members, so the whole microbatch runs in one batch and a member costs
its coordinates, not factors of its own:

    (1)  y = x M^T + ((x B) * z) A^T

M is a linear layer's weight; or the A and B of a frozen adapter beside one, which are passed one
after the other, each by equation (1). Directions are kept in the serving dtype on its device; z is
worked out in fp32 and then rounded, like any other member.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from germline.engines.master_weights import Masters
from germline.protocols import CoordinateSpace, MatrixDirections
from germline.types import Perturbation, TensorInfo

Standing = Mapping[str, Tensor]
"""The coordinates of the members in the batch, `[members, k]` by canonical name."""


class SubspaceMembers:
    """Every member's coordinates, and the center's, in the layers they move."""

    def __init__(
        self,
        model: nn.Module,
        serving: Mapping[str, Tensor],
        masters: Masters,
        space: CoordinateSpace,
    ) -> None:
        self.masters = masters
        self._like = next(iter(serving.values()))
        self.corrections = _Layers(model, masters, space, self._like)

    @contextmanager
    def applied(self, members: Sequence[Perturbation | None]) -> Iterator[None]:
        """Let these members stand in the model during a `with` block; None is the center."""
        with self.corrections.applied(self._coordinates(members)):
            yield

    def _coordinates(self, members: Sequence[Perturbation | None]) -> Standing:
        given = [member for member in members if member is not None]
        applied = {}
        if given:
            device = self.masters.tensors[self.masters.searched[0].name].device
            chosen = [place for place, member in enumerate(members) if member is not None]
            places = torch.tensor(chosen, device=device)
        for info in self.masters.searched:
            rows = self.masters.tensors[info.name].repeat(len(members), 1)
            if given:
                rows[places] += self.masters.displacements(given, info)
            applied[info.name] = rows.to(self._like)
        return applied


class _Layers:
    """The layers that coordinates move, each with its way to compute while members stand."""

    def __init__(
        self, model: nn.Module, masters: Masters, space: CoordinateSpace, like: Tensor
    ) -> None:
        moved = {matrix.name: _Moved(space.directions(matrix), like) for matrix in space.matrices}
        beside = {layer.name: layer for layer in masters.adapted}
        self._layers = []
        for info in masters.base.tensors:
            if info.name not in moved and info.name not in beside:
                continue
            layer = model.get_submodule(info.name.removesuffix(".weight"))
            adapter = _Adapter(info, masters, space.scale, moved, like) if beside else None
            self._layers.append(_Layer(layer, adapter or moved[info.name]))
        self._standing: Standing = {}

    @contextmanager
    def applied(self, coordinates: Standing) -> Iterator[None]:
        """Let members of these coordinates stand in the model during a `with` block."""
        self._bind(coordinates)
        entered: list[_Layer] = []
        try:
            for layer in self._layers:
                layer.enter()
                entered.append(layer)
            yield
        finally:
            for layer in entered:
                layer.leave()
            self._standing = {}

    def keep(self, members: Tensor) -> None:
        """Let the other members leave the batch: their rows are finished."""
        if self._standing:
            self._bind({name: rows[members] for name, rows in self._standing.items()})

    def _bind(self, coordinates: Standing) -> None:
        self._standing = coordinates
        for layer in self._layers:
            layer.change.bind(coordinates)


class _Moved:
    """A matrix's directions, and the coordinates of the members in the batch."""

    def __init__(self, directions: MatrixDirections, like: Tensor) -> None:
        self._name = directions.coordinates
        self._a = directions.a.to(like)
        self._b = directions.b.to(like)

    def bind(self, coordinates: Standing) -> None:
        """Take the coordinates of the members now in the batch."""
        self._z = coordinates[self._name][:, None]

    def add(self, inputs: Tensor, output: Tensor, scale: float = 1.0) -> None:
        """Add scale * ((inputs B) * z) A^T to the output, in place."""
        members, k = self._z.shape[0], self._z.shape[2]
        moved = (inputs.reshape(-1, len(self._b)) @ self._b).view(members, -1, k).mul_(self._z)
        rows = output.view(-1, len(self._a))
        rows.addmm_(moved.view(-1, k), self._a.T, alpha=scale)


class _Adapter:
    """A frozen adapter beside a layer, whose A and B the coordinates may move."""

    def __init__(
        self,
        layer: TensorInfo,
        masters: Masters,
        scale: float,
        moved: Mapping[str, _Moved],
        like: Tensor,
    ) -> None:
        names = layer.adapter_names
        self._scale = scale
        self._a, self._b = (masters.tensors[name].to(like) for name in names)
        self._of_a, self._of_b = (moved.get(name) for name in names)

    def bind(self, coordinates: Standing) -> None:
        """Take the coordinates of the members now in the batch."""
        for moved in (self._of_a, self._of_b):
            if moved:
                moved.bind(coordinates)

    def add(self, inputs: Tensor, output: Tensor) -> None:
        """Add scale * B A inputs to the output, in place."""
        inputs = inputs.reshape(-1, inputs.shape[-1])
        hidden = inputs @ self._a.T
        if self._of_a:
            self._of_a.add(inputs, hidden)
        output.view(-1, len(self._b)).addmm_(hidden, self._b.T, alpha=self._scale)
        if self._of_b:
            self._of_b.add(hidden, output, self._scale)


class _Layer:
    """A linear layer's forward while members stand: its own, and then what is added."""

    def __init__(self, layer: nn.Module, change: _Moved | _Adapter) -> None:
        self.layer = layer
        self.change = change

    def enter(self) -> None:
        """Take the place of the layer's forward."""
        self._plain = self.layer.forward
        self.layer.forward = self

    def leave(self) -> None:
        """Give it back."""
        del self.layer.forward

    def __call__(self, inputs: Tensor) -> Tensor:
        output: Tensor = self._plain(inputs)
        self.change.add(inputs, output)
        return output
