"""A LoRA adapter as its members have it: beside the layers of a batch.

The adapter is theta: its fp32 masters lie among the others, named `<module>.lora_A.weight` and
`<module>.lora_B.weight`. A member's adapter is worked out in fp32 and then rounded to the serving
dtype, like any other member; the center has an adapter too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from germline.engines.batched_lora import BatchedLora, LowRankFactors, SharedDirections
from germline.engines.master_weights import Masters
from germline.protocols import AdapterSpace
from germline.types import Perturbation, TensorInfo, VectorPerturbation, as_seed_perturbation


class LoraMembers:
    """The adapter of every member, and of the center, as corrections beside its layers."""

    def __init__(
        self,
        model: nn.Module,
        serving: Mapping[str, Tensor],
        masters: Masters,
        space: AdapterSpace,
    ) -> None:
        self.masters = masters
        self.space = space
        self.corrections = BatchedLora(model, masters.adapted, space.rank)
        self._like = serving[masters.adapted[0].name]

    @contextmanager
    def applied(self, members: Sequence[Perturbation | None]) -> Iterator[None]:
        """Let these members stand in the model during a `with` block; None is the center."""
        with self.corrections.applied(self._factors(members)):
            yield

    def _factors(self, members: Sequence[Perturbation | None]) -> LowRankFactors:
        """Move the center by every member's displacement."""
        device = self._like.device
        alone = self._laid_out(lambda name: self.masters.tensors[name][None]).to(device)
        everyone = alone.of(torch.zeros(len(members), dtype=torch.long, device=device))
        given = [place for place, member in enumerate(members) if member is not None]
        values = [member for member in members if isinstance(member, VectorPerturbation)]
        if values:
            displacements = partial(self.masters.displacements, values)
            place = self.masters.tensors[self.masters.searched[0].name].device
            moves = self._moves(displacements, len(values), place)
            rows = torch.tensor(given, device=device)
            for center, move in zip(everyone, moves.to(device), strict=True):
                center[rows] += move
        elif given:
            for center, move in zip(everyone, self._seeded_moves(members), strict=True):
                center.add_(move)
        return LowRankFactors(everyone.a.to(self._like), everyone.b.to(self._like))

    def _seeded_moves(self, members: Sequence[Perturbation | None]) -> LowRankFactors:
        """Scale the noise of each member's direction; a pair shares what is drawn."""
        device = self._like.device
        shared = SharedDirections.of(
            [one if one is None else as_seed_perturbation(one) for one in members], device
        )
        drawn = self.space.noises_of(shared.drawn, self.masters.searched, device)

        def noises(info: TensorInfo) -> Tensor:
            unit = self.masters.units[info.name]
            return drawn[info.name] if unit == 1 else drawn[info.name].mul_(unit)

        moves = self._moves(noises, len(shared.drawn), device).of(shared.which)
        for move in moves:
            move.mul_(shared.scale[:, None])
        return moves

    def _moves(
        self, of: Callable[[TensorInfo], Tensor], members: int, device: torch.device
    ) -> LowRankFactors:
        """Lay out how far each member moves each searched tensor; 0 where A is frozen."""
        searched = {info.name: info for info in self.masters.searched}

        def move(name: str) -> Tensor:
            if name in searched:
                return of(searched[name])
            center = self.masters.tensors[name]
            return torch.zeros(members, *center.shape, device=device)

        return self._laid_out(move)

    def _laid_out(self, of: Callable[[str], Tensor]) -> LowRankFactors:
        """Put A `[members, rank, in]` and B `[members, out, rank]` where corrections want them."""
        parts = [layer.adapter_names for layer in self.corrections.layers]
        b = torch.cat([of(name).flatten(1) for name, _ in parts], dim=1)
        a = torch.cat([of(name).mT.flatten(1) for _, name in parts], dim=1)
        return LowRankFactors(a.mul_(self.space.scale), b)
