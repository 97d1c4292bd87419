"""Low-rank corrections of linear layers: input W^T + (input B) A^T, with A, B of each row's member.

- `LowRankMembers` (family `low_rank`): every searched layer adds (x B) A^T, the noise of the member
  to which a row belongs; the center has no factors.
- `LoraMembers` (family `adapter`): theta is an adapter, whose fp32 masters are
  `<module>.lora_A.weight` and `<module>.lora_B.weight`. The adapter of a member is center +
  displacement, computed in fp32 and then rounded to the serving dtype; the center has one too.

A whole microbatch runs in one batch on the shared product of the frozen weight, which is not
written to. All A factors of a microbatch are one tensor and all B factors another: one copy to the
device and one selection when members finish, whatever the number of layers.

The correction is written first and the product of the weight is added to it: this order needs one
pass over the output less, and the next operation finds the output in the cache.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from germline.engines.batched_members import BatchMembers, MemberForward
from germline.engines.master_weights import Masters
from germline.protocols import Members
from germline.spaces.lora import Lora
from germline.spaces.low_rank import LowRank, SharedDirections
from germline.types import SeedPerturbation, TensorInfo, VectorPerturbation

COLUMNWISE_RANK = 4
"""On a CPU, up to this rank, A is applied elementwise: thin matrix products take longer."""

TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers of one module that read the same input, by the names that families of decoders share."""


Factors = Mapping[str, Tensor]
"""The factors of some members, for all layers together: `a`, `[members, sum of rank x out]`, and
`b`, `[members, sum of rank x in]`."""


def _groups(layers: Sequence[TensorInfo]) -> list[list[TensorInfo]]:
    """Group layers of one module that read the same input: q, k, v; gate and up."""
    groups: dict[tuple[str, str, int], list[TensorInfo]] = {}
    for info in layers:
        part, _, own = info.name.removesuffix(".weight").rpartition(".")
        first = next((names[0] for names in TOGETHER if own in names), own)
        groups.setdefault((part, first, info.out_in_features[1]), []).append(info)
    return list(groups.values())


class _Span(NamedTuple):
    """The columns of one layer, or of one group of layers, in the factors of a microbatch."""

    start: int
    stop: int

    def next(self, size: int) -> "_Span":
        return _Span(self.stop, self.stop + size)

    def of(self, factors: Tensor, rows: int) -> Tensor:
        """View them as `[members, rows, size / rows]`."""
        return factors[:, self.start : self.stop].unflatten(1, (rows, -1))


@dataclass
class _Latest:
    """The last projection computed: one for all layers, so that one activation is kept at most."""

    inputs: Tensor | None = None
    projection: "_Projection | None" = None
    parts: Sequence[Tensor] = field(default_factory=tuple)

    def forget(self) -> None:
        self.inputs, self.projection, self.parts = None, None, ()


class _Projection:
    """Inputs times the B factors of layers that read the same input, such as q, k and v.

    The first layer computes all columns; the others reuse them if their input is the same tensor
    object.
    """

    def __init__(self, span: _Span, rank: int, layers: int, latest: _Latest) -> None:
        self.span = span
        self.rank = rank
        self.layers = layers
        self._latest = latest

    def bind(self, drawn: Factors) -> None:
        self.columnwise = drawn["b"].device.type == "cpu" and self.rank <= COLUMNWISE_RANK
        self._b = self.span.of(drawn["b"], self.layers * self.rank)
        self._rows = (len(self._b), -1, self._b.shape[2])

    def parts(self, inputs: Tensor) -> Sequence[Tensor]:
        """Return `[members, rows, 1]` per column, or `[members, rows, rank]` per layer."""
        latest = self._latest
        if inputs is not latest.inputs or latest.projection is not self:
            # B times inputs, not inputs times B: the same numbers, several times faster on a CPU.
            projected = torch.bmm(self._b, inputs.reshape(self._rows).transpose(1, 2))
            latest.inputs, latest.projection = inputs, self
            latest.parts = (
                projected[..., None].unbind(1)
                if self.columnwise
                else projected.transpose(1, 2).split(self.rank, dim=2)
            )
        return latest.parts


class _Correction(MemberForward):
    """A linear layer's forward with a correction."""

    def __init__(self, layer: nn.Module, span: _Span, projection: _Projection, place: int) -> None:
        self.module = layer
        self.span = span
        self.projection = projection
        self.place = place
        parameters = dict(layer.named_parameters(recurse=False))
        self._stored = parameters["weight"]
        self._bias = parameters.get("bias")

    def bind(self, drawn: Factors) -> None:
        if self.place == 0:
            self.projection.bind(drawn)
        a = self.span.of(drawn["a"], self.projection.rank)
        self._weight = self._stored.t() if isinstance(self.module, nn.Linear) else self._stored
        if self.projection.columnwise:
            columns = a[:, :, None].unbind(1)
            self._terms = list(enumerate(columns, start=self.place * len(columns)))
            self._product: Callable[..., Tensor] = torch.mul
            self._sum: Callable[..., Tensor] = torch.addcmul
        else:
            self._terms = [(self.place, a)]
            self._product, self._sum = torch.bmm, torch.baddbmm

    def __call__(self, inputs: Tensor) -> Tensor:
        parts = self.projection.parts(inputs)
        (part, a), *more = self._terms
        if self._bias is None:
            output = self._product(parts[part], a)
        else:
            output = self._sum(self._bias, parts[part], a)
        for part, a in more:
            output.addcmul_(parts[part], a)
        into, out = self._weight.shape
        output.view(-1, out).addmm_(inputs.reshape(-1, into), self._weight)
        return output.view(*inputs.shape[:-1], out)


class _FactorMembers(BatchMembers):
    """Members of a space as corrections of the linear layers that it searches or adapts.

    `layers` are in the order of their `Factors`.
    """

    def __init__(
        self,
        model: nn.Module,
        serving: Mapping[str, Tensor],
        masters: Masters,
        space: LowRank | Lora,
    ) -> None:
        super().__init__(serving, masters)
        self.space = space
        groups = _groups(masters.adapter_layers)
        self.layers = [info for group in groups for info in group]
        sides = zip(*(info.out_in_features for info in self.layers), strict=True)
        self.sizes = [[space.rank * features for features in side] for side in sides]
        self._latest = _Latest()
        self.forwards = corrections = list[MemberForward]()
        of_a = of_b = _Span(0, 0)
        for group in groups:
            _, into = group[0].out_in_features
            of_b = of_b.next(space.rank * into * len(group))
            projection = _Projection(of_b, space.rank, len(group), self._latest)
            for place, info in enumerate(group):
                of_a = of_a.next(space.rank * info.out_in_features[0])
                layer = model.get_submodule(info.name.removesuffix(".weight"))
                corrections.append(_Correction(layer, of_a, projection, place))

    @contextmanager
    def applied(self, members: Members) -> Iterator[None]:
        """Let the model compute these members during a `with` block; None is the center."""
        try:
            with super().applied(members):
                yield
        finally:
            self._latest.forget()


class LowRankMembers(_FactorMembers):
    """Low-rank noise as corrections of the searched linear layers."""

    space: LowRank

    def draw(self, members: Members) -> dict[str, Tensor]:
        """Draw every direction once, as a pair shares it; the center's factors are times zero.

        They are drawn on the serving device: on the host that takes 30 times as long as on a GPU.
        """
        if not any(members):
            return {}
        shared = SharedDirections.of(members, self.like.device)
        a, b = (self._drawn(shared.drawn, side)[shared.which] for side in (0, 1))
        return {"a": a.mul_(shared.scale[:, None]).to(self.like), "b": b.to(self.like)}

    def _drawn(self, members: Sequence[SeedPerturbation], side: int) -> Tensor:
        """Draw A (side 0), times the unit of its layer, or B as the corrections need it."""
        sides = [(info, side ^ info.transposed) for info in self.layers]
        drawn = self.space.sides(members, sides, self.like.device)
        parts = drawn.split(self.sizes[side], dim=1)
        if side == 0:
            for info, part in zip(self.layers, parts, strict=True):
                if (unit := self.masters.units[info.name]) != 1:
                    part.mul_(unit)
        if self.space.rank == 1:
            return drawn
        arranged = [part.unflatten(1, (-1, self.space.rank)).mT.flatten(1) for part in parts]
        return torch.cat(arranged, dim=1)


class LoraMembers(_FactorMembers):
    """The adapter of every member, and of the center, as corrections of the adapted layers."""

    space: Lora

    def draw(self, members: Members) -> dict[str, Tensor]:
        """Add the displacements of members to the adapter of the center."""
        device = self.like.device
        center = self._arranged(lambda name: self.masters.tensors[name][None])
        factors = {side: one.to(device).repeat(len(members), 1) for side, one in center.items()}
        perturbed = [place for place, member in enumerate(members) if member is not None]
        vectors = [member for member in members if isinstance(member, VectorPerturbation)]
        if vectors:
            displacements = partial(self.masters.displacements, vectors)
            host = self.masters.tensors[self.masters.searched[0].name].device
            added = self._displacements(displacements, len(vectors), host)
            rows = torch.tensor(perturbed, device=device)
            for side, all_rows in factors.items():
                all_rows[rows] += added[side].to(device)
        elif perturbed:
            for side, displacement in self._scaled_noise(members).items():
                factors[side].add_(displacement)
        return {side: one.to(self.like) for side, one in factors.items()}

    def _scaled_noise(self, members: Members) -> Factors:
        """Scale the noise of each member's direction; a pair shares the noise."""
        device = self.like.device
        shared = SharedDirections.of(members, device)
        drawn = self.space.noises_of(shared.drawn, self.masters.searched, device)

        def noises(info: TensorInfo) -> Tensor:
            unit = self.masters.units[info.name]
            return drawn[info.name] if unit == 1 else drawn[info.name].mul_(unit)

        found, scale = self._displacements(noises, len(shared.drawn), device), shared.scale
        return {side: one[shared.which].mul_(scale[:, None]) for side, one in found.items()}

    def _displacements(
        self, of: Callable[[TensorInfo], Tensor], members: int, device: torch.device
    ) -> Factors:
        """Arrange the displacement of each member; 0 where A is frozen."""
        searched = {info.name: info for info in self.masters.searched}

        def displacement(name: str) -> Tensor:
            if name in searched:
                return of(searched[name])
            center = self.masters.tensors[name]
            return torch.zeros(members, *center.shape, device=device)

        return self._arranged(displacement)

    def _arranged(self, of: Callable[[str], Tensor]) -> Factors:
        """Arrange A `[members, rank, in]` and B `[members, out, rank]` as the corrections need."""
        parts = [layer.adapter_names for layer in self.layers]
        b = torch.cat([of(name).flatten(1) for name, _ in parts], dim=1)
        a = torch.cat([of(name).mT.flatten(1) for _, name in parts], dim=1)
        return {"a": a.mul_(self.space.scale), "b": b}
