"""How members stand in a serving model: as corrections beside it, or written into it.

- `LowRankMembers`: every searched linear layer adds (x B) A^T for the member a row belongs to, so a
  whole cell runs in one batch on the shared base product. The model's weights are not touched.
- `DenseMembers`: writes cast(centre + sign sigma eps) into the serving tensors, and afterwards
  resets them from the masters. Noise is never subtracted: that drifts (81 % of a step per
  generation in bf16, measured by the field).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from germline.engines.weights import Masters
from germline.protocols import DenseSpace, LowRankSpace
from germline.types import Perturbation, TensorInfo

COLUMNWISE_RANK = 4
"""On a CPU, up to this rank, corrections are elementwise passes: one-column products cost more."""


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
                for info in self.masters.searched:
                    layer = self.model.get_submodule(info.name.removesuffix(".weight"))
                    a, b = self._factors(members, info)
                    correction = _Correction(a, b, like=self.serving[info.name])
                    self._corrections.append(correction)
                    handles.append(layer.register_forward_hook(correction))
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._corrections.clear()

    def keep(self, members: Tensor) -> None:
        """Let the other members leave the batch: their rows are finished."""
        for correction in self._corrections:
            correction.keep(members)

    def _factors(
        self, members: Sequence[Perturbation | None], info: TensorInfo
    ) -> tuple[Tensor, Tensor]:
        """Return A (times sign and sigma) and B, `[members, side, rank]`; zero for the centre."""
        where = [index for index, member in enumerate(members) if member is not None]
        present = [member for member in members if member is not None]
        scale = [member.sign * member.sigma * self.masters.units[info.name] for member in present]
        drawn_a, drawn_b = self.space.factors(present, info)
        out, into = info.shape
        a = torch.zeros(len(members), out, self.space.rank)
        b = torch.zeros(len(members), into, self.space.rank)
        a[where] = drawn_a * torch.tensor(scale)[:, None, None]
        b[where] = drawn_b
        return a, b


class _Correction:
    """Forward hook of a linear layer: output += (input B) A^T for the member of each row."""

    def __init__(self, a: Tensor, b: Tensor, *, like: Tensor) -> None:
        # [members, rank, side]: a column of a factor is a contiguous row, whichever way the product
        # runs.
        self.a = a.transpose(1, 2).contiguous().to(like)
        self.b = b.transpose(1, 2).contiguous().to(like)
        self.columnwise = like.device.type == "cpu" and self.a.shape[1] <= COLUMNWISE_RANK

    def keep(self, members: Tensor) -> None:
        self.a = self.a[members]
        self.b = self.b[members]

    def __call__(self, _layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        members, rank, into = self.b.shape
        x = inputs[0].reshape(members, -1, into)
        y = output.view(members, -1, self.a.shape[2])
        if not self.columnwise:
            y.baddbmm_(torch.bmm(x, self.b.transpose(1, 2)), self.a)
            return output
        for column in range(rank):
            projected = (x * self.b[:, column, None]).sum(-1, keepdim=True)
            y.addcmul_(projected, self.a[:, column, None])
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
