"""Members of family `coordinates`: a frozen weight M becomes M + A diag(z) B^T.

A and B are the same for all members, so the whole microbatch runs in one batch and a member costs
its coordinates z, not factors of its own:

    (1)  y = x M^T + ((x B) * z) A^T

z is computed in fp32 and then rounded, like any other member.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from germline.engines.batched_members import BatchMembers, MemberForward
from germline.engines.master_weights import Masters
from germline.protocols import Members
from germline.spaces.base import CoordinateSpace, MatrixDirections


class SubspaceMembers(BatchMembers):
    """The coordinates `[members, k]` of members and of the center, in the layers they change."""

    def __init__(
        self,
        model: nn.Module,
        serving: Mapping[str, Tensor],
        masters: Masters,
        space: CoordinateSpace,
    ) -> None:
        super().__init__(serving, masters)
        self.forwards = [
            _Layer(
                model.get_submodule(matrix.name.removesuffix(".weight")),
                space.directions(matrix),
                self.like,
            )
            for matrix in space.matrices
        ]

    def draw(self, members: Members) -> dict[str, Tensor]:
        """Add the displacements of members to the coordinates of the center."""
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
            coordinates[info.name] = rows.to(self.like)
        return coordinates


class _Layer(MemberForward):
    """A linear layer whose forward is its own, followed by the change by coordinates.

    It has the directions of the layer, and the coordinates of the members in the batch.
    """

    def __init__(self, layer: nn.Module, directions: MatrixDirections, like: Tensor) -> None:
        self.module = layer
        self._plain = layer.forward
        self._name = directions.coordinates
        self._a = directions.a.to(like)
        self._b = directions.b.to(like)

    def bind(self, drawn: Mapping[str, Tensor]) -> None:
        self._z = drawn[self._name][:, None]

    def __call__(self, inputs: Tensor) -> Tensor:
        """Add ((inputs B) * z) A^T to the output, in place."""
        output: Tensor = self._plain(inputs)
        members, k = self._z.shape[0], self._z.shape[2]
        hidden = (inputs.reshape(-1, len(self._b)) @ self._b).view(members, -1, k).mul_(self._z)
        output.view(-1, len(self._a)).addmm_(hidden.view(-1, k), self._a.T)
        return output
