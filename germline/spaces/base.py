"""What spaces share: dense noise, units of sigma, merging and export.

`BaseSpace` has a default for every method of `protocols.Space` that does not depend on how noise is
drawn; the defaults are those of a space that searches the model's own parameters. `DenseSpace`
draws independent noise for every searched number. A space derives from one of them, or from
`coordinates.CoordinateSpace`.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from germline import tensor_noise
from germline.protocols import BaseModel, MemberAdapter, Members, Theta
from germline.spaces.peft_files import write_adapter
from germline.spaces.sigma_units import exact_mean_square, measure_unit, measured_name
from germline.tensor_noise import NoiseStream
from germline.types import SeedPerturbation, TensorInfo, Update, as_seed_perturbation


class BaseSpace:
    """The defaults: theta is parameters of the model, and the space has no adapter.

    Attributes:
        scale: the factor of B A, where the space has an adapter.
    """

    family = "dense"
    searches_weights = True
    direction_rank: int | None = None
    adapter_rank: int | None = None
    scale = 1.0

    def begin(self, base: BaseModel) -> Mapping[TensorInfo, Tensor]:
        """Add no tensor to the model."""
        return {}

    def select(self, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Keep the tensors that are searched, in the order given."""
        raise NotImplementedError

    def searched_shapes(self, tensors: Sequence[TensorInfo]) -> list[tuple[int, ...]]:
        """Return the shapes of the searched tensors in a model of these parameters."""
        return [tensor.shape for tensor in self.select(tensors)]

    def numbers_per_member(self, tensors: Sequence[TensorInfo]) -> int:
        """Return 0: a member has weights of its own."""
        return 0

    def unit(self, tensor: TensorInfo, base: BaseModel, start: Mapping[str, Tensor]) -> float:
        """Measure one searched tensor of the starting weights."""
        is_rms = base.sigma_unit == "rms"
        name = measured_name(tensor, start) if is_rms else tensor.name
        return measure_unit(base.sigma_unit, name, start[name])

    def noise(
        self, member: SeedPerturbation, tensor: TensorInfo, device: torch.device | None = None
    ) -> Tensor:
        """Draw the unit noise of a member's direction, fp32 of the tensor's shape."""
        raise NotImplementedError

    def mean_squares(self, members: Sequence[SeedPerturbation], tensor: TensorInfo) -> list[float]:
        """Return the mean square of each direction's unit noise, drawn one after another."""
        return [exact_mean_square(self.noise(member, tensor)) for member in members]

    def write_perturbed(
        self,
        member: SeedPerturbation,
        tensor: TensorInfo,
        scale: float,
        center: Tensor,
        out: Tensor,
    ) -> None:
        """Write center + scale * noise into a serving tensor: fp32 multiply, add, then round."""
        out.copy_(self.noise(member, tensor, center.device).mul_(scale).add_(center))

    def changed_weights(self, theta: Theta) -> tuple[TensorInfo, ...]:
        """Return the searched tensors."""
        return theta.searched

    def apply_coordinates(self, values: dict[str, Tensor]) -> None:
        """Do nothing: there are no coordinates."""

    def merge(self, values: dict[str, Tensor], adapted: Sequence[TensorInfo]) -> None:
        """Add what coordinates change, then the adapter: W + scale * B A."""
        self.apply_coordinates(values)
        for layer in adapted:
            a, b = (values[name] for name in layer.adapter_names)
            add_to_matrix(values, layer, (b @ a).mul_(self.scale))

    def write_adapter(
        self,
        folder: Path,
        values: dict[str, Tensor],
        adapted: Sequence[TensorInfo],
        base: BaseModel,
    ) -> None:
        """Write the adapter as a folder that plain `peft` loads, with what coordinates change."""
        self.apply_coordinates(values)
        adapter = {name: values[name] for layer in adapted for name in layer.adapter_names}
        rank = len(adapter[adapted[0].adapter_names[0]])
        write_adapter(folder, adapter, adapted, alpha=self.scale * rank, base=base)

    def member_adapters(self, members: Members, theta: Theta) -> list[MemberAdapter]:
        """Refuse: members of this space cannot be written as LoRA adapters."""
        raise TypeError(f"members of {type(self).__name__} are not adapters")


class DenseSpace(BaseSpace):
    """Independent noise for every searched number, in the stream of the tensor's name."""

    def noises(
        self,
        members: Sequence[SeedPerturbation],
        tensor: TensorInfo,
        device: torch.device | None = None,
    ) -> Tensor:
        """Draw the unit noise of directions of one generation, fp32 `[members, *shape]`."""
        first = members[0]
        directions = [member.direction for member in members]
        stream = NoiseStream(first.run_seed, first.generation, tensor.name)
        drawn = tensor_noise.normals(stream, directions, math.prod(tensor.shape), device=device)
        return drawn.view(-1, *tensor.shape)

    def noises_of(
        self,
        members: Sequence[SeedPerturbation],
        tensors: Sequence[TensorInfo],
        device: torch.device | None = None,
    ) -> Mapping[str, Tensor]:
        """Draw the `noises` of many tensors by name: faster where tensors are small."""
        first = members[0]
        sizes = {tensor.name: math.prod(tensor.shape) for tensor in tensors}
        directions = [member.direction for member in members]
        drawn = tensor_noise.concatenated_noise(
            first.run_seed, first.generation, directions, sizes, device
        )
        parts = drawn.split(list(sizes.values()), dim=1)
        return {
            tensor.name: part.unflatten(1, tensor.shape)
            for tensor, part in zip(tensors, parts, strict=True)
        }

    def noise(
        self, member: SeedPerturbation, tensor: TensorInfo, device: torch.device | None = None
    ) -> Tensor:
        """Draw the unit noise of a member's direction, fp32 of the tensor's shape."""
        return self.noises([member], tensor, device)[0]

    def gradient(
        self, update: Update, tensor: TensorInfo, device: torch.device | None = None
    ) -> Tensor:
        """Sum coefficients times noise in order (fp32 multiply, then add: same bits anywhere)."""
        stream = NoiseStream(update.run_seed, update.generation, tensor.name)
        size = math.prod(tensor.shape)
        total = tensor_noise.weighted_sum(stream, update.coefficients, size, device=device)
        return total.view(tensor.shape)


class SharedDirections(NamedTuple):
    """The directions of some members, each once: an antithetic pair shares one.

    Attributes:
        drawn: one member for every direction; the center (None) has none.
        which: `[members]`, the place in `drawn` of each member's direction; 0 for the center.
        scale: `[members]`, sign times sigma; 0 for the center.
    """

    drawn: list[SeedPerturbation]
    which: Tensor
    scale: Tensor

    @classmethod
    def of(cls, members: Members, device: torch.device | None = None) -> "SharedDirections":
        """List the directions of members, in the order of first appearance."""
        named = [None if member is None else as_seed_perturbation(member) for member in members]
        drawn = {member.direction: member for member in named if member is not None}
        places = {direction: place for place, direction in enumerate(drawn)}
        which = [places[member.direction] if member is not None else 0 for member in named]
        scale = [member.sign * member.sigma if member is not None else 0.0 for member in named]
        numbers = torch.tensor(which, device=device), torch.tensor(scale, device=device)
        return cls(list(drawn.values()), *numbers)


def add_to_matrix(values: dict[str, Tensor], matrix: TensorInfo, change: Tensor) -> None:
    """Replace a frozen matrix, of any device and dtype, by its sum with an fp32 `[out, in]`."""
    change = change.T if matrix.transposed else change
    values[matrix.name] = values[matrix.name].to(change) + change
