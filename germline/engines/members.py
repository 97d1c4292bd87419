"""How members stand in a serving model: as corrections beside it, or written into it.

- `LowRankMembers`: every searched linear layer adds (x B) A^T for the member a row belongs to, so a
  whole cell runs in one batch on the shared base product. The model's weights are not touched.
- `DenseMembers`: writes cast(centre + sign sigma eps) into the serving tensors, and afterwards
  resets them from the masters. Noise is never subtracted: that drifts (81 % of a step per
  generation in bf16, measured by the field).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from germline.engines.weights import Masters
from germline.protocols import DenseSpace, LowRankSpace
from germline.types import Perturbation, TensorInfo

COLUMNWISE_RANK = 4
"""On a CPU, up to this rank, A is applied by elementwise passes: thin products cost more."""


class LowRankMembers:
    """Corrections of one cell, layer by layer; rows are ordered by member, equally many each."""

    def __init__(
        self,
        model: nn.Module,
        serving: Mapping[str, Tensor],
        masters: Masters,
        space: LowRankSpace,
    ) -> None:
        self.model = model
        self.serving = serving
        self.masters = masters
        self.space = space
        self._corrections: list[_Correction] = []

    @contextmanager
    def standing(self, members: Sequence[Perturbation | None]) -> Iterator[None]:
        """Let these members stand in the model during a `with` block; None is the centre."""
        handles = []
        try:
            if any(member is not None for member in members):
                self._corrections = self._correct(members)
                for correction in self._corrections:
                    layer = self.model.get_submodule(correction.layer)
                    handles.append(layer.register_forward_hook(correction))
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._corrections = []

    def keep(self, members: Tensor) -> None:
        """Let the other members leave the batch: their rows are finished."""
        for projection in {
            id(one.projection): one.projection for one in self._corrections
        }.values():
            projection.keep(members)
        for correction in self._corrections:
            correction.a = correction.a[members]

    def _correct(self, members: Sequence[Perturbation | None]) -> list["_Correction"]:
        """Make the corrections; layers of one part that read equally wide inputs go together."""
        groups: dict[tuple[str, int], list[TensorInfo]] = {}
        for info in self.masters.searched:
            part = info.name.removesuffix(".weight").rpartition(".")[0]
            groups.setdefault((part, info.shape[1]), []).append(info)
        corrections, latest = [], _Latest()
        for group in groups.values():
            factors = [self._factors(members, info) for info in group]
            like = self.serving[group[0].name]
            projection = _Projection(torch.cat([b for _, b in factors], dim=2).to(like), latest)
            for place, (info, (a, _)) in enumerate(zip(group, factors, strict=True)):
                layer = info.name.removesuffix(".weight")
                corrections.append(_Correction(layer, a.to(like), projection, place))
        return corrections

    def _factors(
        self, members: Sequence[Perturbation | None], info: TensorInfo
    ) -> tuple[Tensor, Tensor]:
        """Return A (times sign, sigma), `[members, rank, out]`, and B, `[members, in, rank]`."""
        where = [index for index, member in enumerate(members) if member is not None]
        present = [member for member in members if member is not None]
        scale = [member.sign * member.sigma * self.masters.units[info.name] for member in present]
        drawn_a, drawn_b = self.space.factors(present, info)
        scaled = drawn_a.transpose(1, 2) * torch.tensor(scale)[:, None, None]
        if len(present) == len(members):
            return scaled, drawn_b
        # Zero for the centre, which may stand among the members.
        a = scaled.new_zeros(len(members), *scaled.shape[1:])
        b = drawn_b.new_zeros(len(members), *drawn_b.shape[1:])
        a[where], b[where] = scaled, drawn_b
        return a, b


@dataclass
class _Latest:
    """The last projection computed: one for all layers, so one activation is held and no more."""

    inputs: Tensor | None = None
    projection: "_Projection | None" = None
    projected: Tensor | None = None


class _Projection:
    """Inputs times the B factors of layers that read the same input, such as q, k and v.

    The first of them computes all columns; the others find them ready, as long as they are given
    the very same tensor. A layer with another input (o beside q, k, v) computes them anew.
    """

    def __init__(self, b: Tensor, latest: _Latest) -> None:
        self.b = b
        self._latest = latest

    def keep(self, members: Tensor) -> None:
        self.b = self.b[members]

    def of(self, inputs: Tensor) -> Tensor:
        """Return `[members, rows per member, columns]`."""
        latest = self._latest
        if latest.projected is None or inputs is not latest.inputs or latest.projection is not self:
            members, into, _ = self.b.shape
            latest.inputs, latest.projection = inputs, self
            latest.projected = torch.bmm(inputs.reshape(members, -1, into), self.b)
        return latest.projected


class _Correction:
    """Forward hook of a linear layer: output += (input B) A^T for the member of each row."""

    def __init__(self, layer: str, a: Tensor, projection: _Projection, place: int) -> None:
        self.layer = layer
        self.a = a
        self.projection = projection
        self.columns = range(place * a.shape[1], (place + 1) * a.shape[1])
        self.columnwise = a.device.type == "cpu" and a.shape[1] <= COLUMNWISE_RANK

    def __call__(self, _layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        members, rank, out = self.a.shape
        projected = self.projection.of(inputs[0])
        y = output.view(members, -1, out)
        if self.columnwise:
            for column, row in zip(self.columns, range(rank), strict=True):
                y.addcmul_(projected[..., column, None], self.a[:, row, None])
        else:
            y.baddbmm_(projected[..., self.columns.start : self.columns.stop], self.a)
        return output


class DenseMembers:
    """One member at a time, written into the serving tensors from the fp32 masters."""

    def __init__(self, serving: Mapping[str, Tensor], masters: Masters, space: DenseSpace) -> None:
        self.serving = serving
        self.masters = masters
        self.space = space

    @contextmanager
    def standing(self, member: Perturbation | None) -> Iterator[None]:
        """Let one member stand in the model during a `with` block, then reset from the masters."""
        if member is None:
            yield
            return
        try:
            for info in self.masters.searched:
                master = self.masters.tensors[info.name]
                scale = member.sign * member.sigma * self.masters.units[info.name]
                moved = self.space.noise(member, info).to(master.device).mul_(scale).add_(master)
                self.serving[info.name].copy_(moved)
            yield
        finally:
            for info in self.masters.searched:
                self.serving[info.name].copy_(self.masters.tensors[info.name])
