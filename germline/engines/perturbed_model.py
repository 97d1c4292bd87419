"""How members stand in a serving model: as corrections beside it, or written into it.

- `LowRankMembers`: every searched linear layer adds (x B) A^T for the member a row belongs to, so a
  whole microbatch runs in one batch on the shared base product. The model's weights are not
  touched.
- `DenseMembers`: writes cast(center + sign sigma eps) into the serving tensors, and afterwards
  resets them from the masters. Noise is never subtracted: that drifts (81 % of a step per
  generation in bf16, measured by the field). Several such members at once: `batched_dense.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from germline.engines.batched_lora import BatchedLora, LowRankFactors, SharedDirections
from germline.engines.master_weights import Masters
from germline.protocols import DenseSpace, LowRankSpace
from germline.types import Perturbation, SeedPerturbation, as_seed_perturbation


class LowRankMembers:
    """Low-rank noise as corrections beside the searched linear layers."""

    def __init__(
        self,
        model: nn.Module,
        serving: Mapping[str, Tensor],
        masters: Masters,
        space: LowRankSpace,
    ) -> None:
        self.masters = masters
        self.space = space
        self.corrections = BatchedLora(model, masters.searched, space.rank)
        self._like = serving[masters.searched[0].name]

    @contextmanager
    def applied(self, members: Sequence[Perturbation | None]) -> Iterator[None]:
        """Let these members stand in the model during a `with` block; None is the center."""
        if all(member is None for member in members):
            yield
            return
        drawn = [one if one is None else as_seed_perturbation(one) for one in members]
        with self.corrections.applied(self._draw(drawn)):
            yield

    def _draw(self, members: Sequence[SeedPerturbation | None]) -> LowRankFactors:
        """Draw every direction once; a pair shares it, and the center's factors are times zero.

        They are drawn where they are used: drawing on the host is 30 times slower than a GPU.
        """
        device = self._like.device
        shared = SharedDirections.of(members, device)
        layers = self.corrections.layers
        a, b = (
            self.space.sides(
                shared.drawn, [(info, side ^ info.transposed) for info in layers], device
            )
            for side in (0, 1)
        )
        factors = self.corrections.arranged(a, b)
        for info in self.corrections.layers:
            if (unit := self.masters.units[info.name]) != 1:
                self.corrections.a(factors, info.name).mul_(unit)
        a, b = factors.of(shared.which)
        return LowRankFactors(a.mul_(shared.scale[:, None]).to(self._like), b.to(self._like))


class DenseMembers:
    """One member at a time, written into the serving tensors from the fp32 masters."""

    together = 1

    def __init__(self, serving: Mapping[str, Tensor], masters: Masters, space: DenseSpace) -> None:
        self.serving = serving
        self.masters = masters
        self.space = space

    @contextmanager
    def applied(self, members: Sequence[Perturbation | None]) -> Iterator[None]:
        """Let one member stand in the model during a `with` block, then reset from the masters."""
        (member,) = members
        if member is None:
            yield
            return
        try:
            self._write(member)
            yield
        finally:
            for info in self.masters.searched:
                self.serving[info.name].copy_(self.masters.tensors[info.name])

    def keep(self, members: Tensor) -> None:
        """Go on: the only member there is stays."""

    def _write(self, member: Perturbation) -> None:
        for info in self.masters.searched:
            self.masters.write_member(member, info, self.serving[info.name])
