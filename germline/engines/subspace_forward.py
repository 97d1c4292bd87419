"""Members of family `coordinates`: a frozen matrix M becomes M + A diag(z) B^T.

A and B are the same for all members, so the whole microbatch runs in one batch and a member costs
its coordinates z, not factors of its own:

    (1)  y = x M^T + ((x B) * z) A^T

M is a linear layer's weight; or the A and B of a frozen adapter, which are applied one after the
other, each by equation (1). z is computed in fp32 and then rounded, like any other member.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from germline.engines.master_weights import Masters
from germline.engines.model_tensors import replaced_forwards
from germline.protocols import Members
from germline.spaces.base import CoordinateSpace, MatrixDirections
from germline.types import TensorInfo

MemberCoordinates = Mapping[str, Tensor]
"""The coordinates of the members in the batch, `[members, k]` by canonical name."""


class SubspaceMembers:
    """The coordinates of every member, and of the center, in the layers they change."""

    together = None

    def __init__(
        self,
        model: nn.Module,
        serving: Mapping[str, Tensor],
        masters: Masters,
        space: CoordinateSpace,
    ) -> None:
        self.masters = masters
        self._like = next(iter(serving.values()))
        self._layers = _make_layers(model, masters, space, self._like)
        self._applied: MemberCoordinates = {}

    @contextmanager
    def applied(self, members: Members) -> Iterator[None]:
        """Let the model compute these members during a `with` block; None is the center."""
        self._bind(self._coordinates(members))
        try:
            with replaced_forwards([(one.layer, one) for one in self._layers]):
                yield
        finally:
            self._applied = {}

    def keep(self, members: Tensor) -> None:
        """Drop all other members from the batch: their rows are finished."""
        if self._applied:
            self._bind({name: rows[members] for name, rows in self._applied.items()})

    def _bind(self, coordinates: MemberCoordinates) -> None:
        self._applied = coordinates
        for layer in self._layers:
            layer.change.bind(coordinates)

    def _coordinates(self, members: Members) -> MemberCoordinates:
        perturbed = [member for member in members if member is not None]
        coordinates = {}
        if perturbed:
            device = self.masters.tensors[self.masters.searched[0].name].device
            chosen = [place for place, member in enumerate(members) if member is not None]
            places = torch.tensor(chosen, device=device)
        for info in self.masters.searched:
            rows = self.masters.tensors[info.name].repeat(len(members), 1)
            if perturbed:
                rows[places] += self.masters.displacements(perturbed, info)
            coordinates[info.name] = rows.to(self._like)
        return coordinates


class _MatrixChange:
    """The directions of one matrix, and the coordinates of the members in the batch."""

    def __init__(self, directions: MatrixDirections, like: Tensor) -> None:
        self._name = directions.coordinates
        self._a = directions.a.to(like)
        self._b = directions.b.to(like)

    def bind(self, coordinates: MemberCoordinates) -> None:
        self._z = coordinates[self._name][:, None]

    def add(self, inputs: Tensor, output: Tensor, scale: float = 1.0) -> None:
        """Add scale * ((inputs B) * z) A^T to the output, in place."""
        members, k = self._z.shape[0], self._z.shape[2]
        hidden = (inputs.reshape(-1, len(self._b)) @ self._b).view(members, -1, k).mul_(self._z)
        rows = output.view(-1, len(self._a))
        rows.addmm_(hidden.view(-1, k), self._a.T, alpha=scale)


class _Adapter:
    """A frozen adapter of a layer, whose A and B the coordinates may change."""

    def __init__(
        self,
        layer: TensorInfo,
        masters: Masters,
        scale: float,
        changes: Mapping[str, _MatrixChange],
        like: Tensor,
    ) -> None:
        names = layer.adapter_names
        self._scale = scale
        self._a, self._b = (masters.tensors[name].to(like) for name in names)
        self._change_of_a, self._change_of_b = (changes.get(name) for name in names)

    def bind(self, coordinates: MemberCoordinates) -> None:
        for change in (self._change_of_a, self._change_of_b):
            if change:
                change.bind(coordinates)

    def add(self, inputs: Tensor, output: Tensor) -> None:
        """Add scale * B A inputs to the output, in place."""
        inputs = inputs.reshape(-1, inputs.shape[-1])
        hidden = inputs @ self._a.T
        if self._change_of_a:
            self._change_of_a.add(inputs, hidden)
        output.view(-1, len(self._b)).addmm_(hidden, self._b.T, alpha=self._scale)
        if self._change_of_b:
            self._change_of_b.add(hidden, output, self._scale)


class _Layer:
    """A linear layer whose forward is its own, followed by a change of the output."""

    def __init__(self, layer: nn.Module, change: _MatrixChange | _Adapter) -> None:
        self.layer = layer
        self.change = change
        self._plain = layer.forward

    def __call__(self, inputs: Tensor) -> Tensor:
        output: Tensor = self._plain(inputs)
        self.change.add(inputs, output)
        return output


def _make_layers(
    model: nn.Module, masters: Masters, space: CoordinateSpace, like: Tensor
) -> list[_Layer]:
    """Make the layers that coordinates change, and those that have a frozen adapter."""
    changes = {
        matrix.name: _MatrixChange(space.directions(matrix), like) for matrix in space.matrices
    }
    adapted = {layer.name for layer in masters.adapted}
    layers = []
    for info in masters.base.tensors:
        if info.name not in changes and info.name not in adapted:
            continue
        module = model.get_submodule(info.name.removesuffix(".weight"))
        adapter = _Adapter(info, masters, space.scale, changes, like) if adapted else None
        layers.append(_Layer(module, adapter or changes[info.name]))
    return layers
