"""Members whose linear layers have LoRA factors of their own: a microbatch runs as one batch.

- `LowRankMembers` (family `low_rank`): every searched layer adds (x B) A^T, the noise of the member
  to which a row belongs; the center has no factors.
- `LoraMembers` (family `adapter`): theta is an adapter, whose fp32 masters are
  `<module>.lora_A.weight` and `<module>.lora_B.weight`. The adapter of a member is center +
  displacement, computed in fp32 and then rounded to the serving dtype; the center has one too.

The weights of the model are not written to.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from germline.engines.batched_lora import BatchedLora, LowRankFactors
from germline.engines.master_weights import Masters
from germline.protocols import Members
from germline.spaces.base import SharedDirections
from germline.spaces.lora import Lora
from germline.spaces.low_rank import LowRank
from germline.types import TensorInfo, VectorPerturbation


class _FactorMembers:
    """Members of a space as corrections of the linear layers that it searches or adapts."""

    together = None

    def __init__(
        self,
        model: nn.Module,
        serving: Mapping[str, Tensor],
        masters: Masters,
        space: LowRank | Lora,
    ) -> None:
        self.masters = masters
        self.space = space
        layers = masters.adapter_layers
        self.corrections = BatchedLora(model, layers, space.rank)
        self._like = serving[layers[0].name]

    @contextmanager
    def applied(self, members: Members) -> Iterator[None]:
        factors = self._factors(members)
        with self.corrections.applied(factors) if factors is not None else nullcontext():
            yield

    def keep(self, members: Tensor) -> None:
        self.corrections.keep(members)

    def _factors(self, members: Members) -> LowRankFactors | None:
        """Return the factors of these members; None where no layer is corrected."""
        raise NotImplementedError


class LowRankMembers(_FactorMembers):
    """Low-rank noise as corrections of the searched linear layers."""

    space: LowRank

    def _factors(self, members: Members) -> LowRankFactors | None:
        """Draw every direction once, as a pair shares it; the center's factors are times zero.

        They are drawn on the serving device: on the host that takes 30 times as long as on a GPU.
        """
        if all(member is None for member in members):
            return None
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


class LoraMembers(_FactorMembers):
    """The adapter of every member, and of the center, as corrections of the adapted layers."""

    space: Lora

    def _factors(self, members: Members) -> LowRankFactors:
        device = self._like.device
        center = self._arranged(lambda name: self.masters.tensors[name][None]).to(device)
        factors = center.of(torch.zeros(len(members), dtype=torch.long, device=device))
        perturbed = [place for place, member in enumerate(members) if member is not None]
        vectors = [member for member in members if isinstance(member, VectorPerturbation)]
        if vectors:
            displacements = partial(self.masters.displacements, vectors)
            host = self.masters.tensors[self.masters.searched[0].name].device
            added = self._displacements(displacements, len(vectors), host)
            rows = torch.tensor(perturbed, device=device)
            for all_rows, displacement in zip(factors, added.to(device), strict=True):
                all_rows[rows] += displacement
        elif perturbed:
            for all_rows, displacement in zip(factors, self._scaled_noise(members), strict=True):
                all_rows.add_(displacement)
        return LowRankFactors(factors.a.to(self._like), factors.b.to(self._like))

    def _scaled_noise(self, members: Members) -> LowRankFactors:
        """Scale the noise of each member's direction; a pair shares the noise."""
        device = self._like.device
        shared = SharedDirections.of(members, device)
        drawn = self.space.noises_of(shared.drawn, self.masters.searched, device)

        def noises(info: TensorInfo) -> Tensor:
            unit = self.masters.units[info.name]
            return drawn[info.name] if unit == 1 else drawn[info.name].mul_(unit)

        scaled = self._displacements(noises, len(shared.drawn), device).of(shared.which)
        for displacement in scaled:
            displacement.mul_(shared.scale[:, None])
        return scaled

    def _displacements(
        self, of: Callable[[TensorInfo], Tensor], members: int, device: torch.device
    ) -> LowRankFactors:
        """Arrange the displacement of each member; 0 where A is frozen."""
        searched = {info.name: info for info in self.masters.searched}

        def displacement(name: str) -> Tensor:
            if name in searched:
                return of(searched[name])
            center = self.masters.tensors[name]
            return torch.zeros(members, *center.shape, device=device)

        return self._arranged(displacement)

    def _arranged(self, of: Callable[[str], Tensor]) -> LowRankFactors:
        """Arrange A `[members, rank, in]` and B `[members, out, rank]` as the corrections need."""
        parts = [layer.adapter_names for layer in self.corrections.layers]
        b = torch.cat([of(name).flatten(1) for name, _ in parts], dim=1)
        a = torch.cat([of(name).mT.flatten(1) for _, name in parts], dim=1)
        return LowRankFactors(a.mul_(self.space.scale), b)
