"""A LoRA adapter as its members have it: beside the layers of a batch.

The adapter is theta: its fp32 masters lie among the others, named `<module>.lora_A.weight` and
`<module>.lora_B.weight`. A member's adapter is worked out in fp32 and then rounded to the serving
dtype, like any other member; the centre has an adapter too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from germline.engines.corrections import Corrections, Factors, Shared
from germline.engines.weights import Masters
from germline.protocols import AdapterSpace
from germline.types import Coordinates, Perturbation, TensorInfo, as_seeded


class AdapterMembers:
    """The adapter of every member, and of the centre, as corrections beside its layers."""

    def __init__(
        self,
        model: nn.Module,
        serving: Mapping[str, Tensor],
        masters: Masters,
        space: AdapterSpace,
    ) -> None:
        self.masters = masters
        self.space = space
        self.corrections = Corrections(model, masters.adapted, space.rank)
        self._like = serving[masters.adapted[0].name]

    @contextmanager
    def standing(self, members: Sequence[Perturbation | None]) -> Iterator[None]:
        """Let these members stand in the model during a `with` block; None is the centre."""
        with self.corrections.standing(self._factors(members)):
            yield

    def _factors(self, members: Sequence[Perturbation | None]) -> Factors:
        """Move the centre by every member's displacement."""
        device = self._like.device
        alone = self._laid_out(lambda name: self.masters.tensors[name][None]).to(device)
        everyone = alone.of(torch.zeros(len(members), dtype=torch.long, device=device))
        given = [place for place, member in enumerate(members) if member is not None]
        values = [member for member in members if isinstance(member, Coordinates)]
        if values:
            displacements = partial(self.masters.displacements, values)
            place = self.masters.tensors[self.masters.searched[0].name].device
            moves = self._moves(displacements, len(values), place)
            rows = torch.tensor(given, device=device)
            for centre, move in zip(everyone, moves.to(device), strict=True):
                centre[rows] += move
        elif given:
            for centre, move in zip(everyone, self._seeded_moves(members), strict=True):
                centre.add_(move)
        return Factors(everyone.a.to(self._like), everyone.b.to(self._like))

    def _seeded_moves(self, members: Sequence[Perturbation | None]) -> Factors:
        """Scale the noise of each member's direction; a pair shares what is drawn."""
        device = self._like.device
        shared = Shared.of([one if one is None else as_seeded(one) for one in members], device)
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
    ) -> Factors:
        """Lay out how far each member moves each searched tensor; 0 where A is frozen."""
        searched = {info.name: info for info in self.masters.searched}

        def move(name: str) -> Tensor:
            if name in searched:
                return of(searched[name])
            centre = self.masters.tensors[name]
            return torch.zeros(members, *centre.shape, device=device)

        return self._laid_out(move)

    def _laid_out(self, of: Callable[[str], Tensor]) -> Factors:
        """Put A `[members, rank, in]` and B `[members, out, rank]` where corrections want them."""
        parts = [layer.adapter_names for layer in self.corrections.layers]
        b = torch.cat([of(name).flatten(1) for name, _ in parts], dim=1)
        a = torch.cat([of(name).mT.flatten(1) for _, name in parts], dim=1)
        return Factors(a.mul_(self.space.scale), b)
