"""What a space is: which numbers are searched, and how a direction changes each tensor.

`BaseSpace` has a default for every method that does not depend on how noise is drawn; the defaults
are those of a space that searches the model's own parameters. `DenseSpace` draws independent noise
for every searched number, `CoordinateSpace` for coordinates of fixed directions. A space derives
from one of them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from germline import registry, tensor_noise
from germline.config import SpaceConfig
from germline.protocols import Members
from germline.spaces.sigma_units import exact_mean_square, measure_unit, measured_name
from germline.tensor_noise import NoiseStream
from germline.types import Perturbation, SeedPerturbation, TensorInfo, Update


@dataclass(frozen=True)
class BaseModel:
    """The model without the tensors that a space adds to it.

    Attributes:
        source: the folder or Hugging Face id.
        tensors: the parameters of the model, in canonical order.
        digest: computes the digest of the fp32 weights.
        weights: the starting weights by canonical name.
        sigma_unit: `strategy.sigma_unit`, what sigma and learning rate are multiples of.
    """

    source: str
    tensors: tuple[TensorInfo, ...]
    digest: Callable[[], str]
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    sigma_unit: str = "constant"


@dataclass(frozen=True)
class MemberAdapter:
    """One member as a LoRA adapter for an inference engine.

    Attributes:
        tensors: `<module>.lora_A.weight` `[rank, in]` and `<module>.lora_B.weight` `[out, rank]`
            of every adapted layer, in fp32, under PEFT's names.
    """

    rank: int
    tensors: Mapping[str, Tensor]

    def config(self) -> dict[str, object]:
        """Return the content of PEFT's `adapter_config.json`."""
        parts = (name.removesuffix(".lora_A.weight") for name in self.tensors)
        modules = sorted({part.rpartition(".")[2] for part in parts if ".lora_B." not in part})
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": self.rank,
            "lora_alpha": self.rank,
            "target_modules": modules,
            "bias": "none",
        }


@runtime_checkable
class Theta(Protocol):
    """The weights of an engine, as far as a space reads them.

    Attributes:
        searched: the tensors that `BaseSpace.select` keeps.
        adapted: the linear layers that have a LoRA adapter.
        units: per searched tensor, what sigma and learning rate are multiples of.
    """

    base: BaseModel
    searched: tuple[TensorInfo, ...]
    adapted: tuple[TensorInfo, ...]
    units: dict[str, float]

    def member_values(self, member: Perturbation | None) -> dict[str, Tensor]:
        """Return all tensors by name; those searched are center + displacement of the member."""


class BaseSpace(ABC):
    """Which numbers are searched, and how a direction changes each tensor.

    Attributes:
        family: how members differ from the center, which decides how an engine runs them in its
            forward pass: `dense`, `low_rank`, `adapter` or `coordinates`.
        searches_weights: whether the searched tensors are parameters of the model; otherwise they
            are additional tensors, which `begin` returns.
        direction_rank: rank of one direction's noise in a matrix; None: full rank.
        adapter_rank: rank of `member_adapters`; None: members cannot be written as LoRA adapters.
        scale: the factor of B A, where the space has an adapter.
    """

    family = "dense"
    searches_weights = True
    direction_rank: int | None = None
    adapter_rank: int | None = None
    scale = 1.0

    def begin(self, base: BaseModel) -> Mapping[TensorInfo, Tensor]:
        """Return the tensors that the space adds to the model, fp32 on the CPU, in order: none."""
        return {}

    @abstractmethod
    def select(self, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Keep the tensors that are searched, in the order given."""

    def searched_shapes(self, tensors: Sequence[TensorInfo]) -> list[tuple[int, ...]]:
        """Return the shapes of the searched tensors in a model of these parameters."""
        return [tensor.shape for tensor in self.select(tensors)]

    def numbers_per_member(self, tensors: Sequence[TensorInfo]) -> int:
        """Count the numbers that a member adds to shared weights; 0: it has weights of its own."""
        return 0

    def unit(self, tensor: TensorInfo, base: BaseModel, start: Mapping[str, Tensor]) -> float:
        """Return what sigma and learning rate are multiples of in one searched tensor.

        `start` has all starting tensors by name, those of `begin` included.
        """
        is_rms = base.sigma_unit == "rms"
        name = measured_name(tensor, start) if is_rms else tensor.name
        return measure_unit(base.sigma_unit, name, start[name])

    @abstractmethod
    def noise(
        self, member: SeedPerturbation, tensor: TensorInfo, device: torch.device | None = None
    ) -> Tensor:
        """Draw the unit noise of a member's direction (without sign and sigma), as fp32."""

    def mean_squares(self, members: Sequence[SeedPerturbation], tensor: TensorInfo) -> list[float]:
        """Return the mean square of each direction's unit noise in one tensor, of exact sums."""
        return [exact_mean_square(self.noise(member, tensor)) for member in members]

    @abstractmethod
    def gradient(
        self, update: Update, tensor: TensorInfo, device: torch.device | None = None
    ) -> Tensor:
        """Sum coefficients times noise over directions, in a fixed order, as fp32.

        The sum is computed on `device`; None is the CPU.
        """

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
        """Return the parameters of the model that members or updates change, in canonical order.

        Empty where theta is an adapter, which inference engines keep apart from the model.
        """
        return theta.searched

    def merge(  # noqa: B027 - most search the weights themselves
        self, values: dict[str, Tensor], adapted: Sequence[TensorInfo]
    ) -> None:
        """Merge what the space adds to the model into the weights, by replacing entries.

        `values` has all tensors of the center or of a member; `adapted` layers have an adapter.
        """

    def member_adapters(self, members: Members, theta: Theta) -> list[MemberAdapter]:
        """Return members (None: the center) as LoRA adapters, where `adapter_rank` is set."""
        raise TypeError(f"members of {type(self).__name__} are not adapters")


class DenseSpace(BaseSpace):
    """Independent noise for every searched number, in the stream of the tensor's name."""

    def noises_of(
        self,
        members: Sequence[SeedPerturbation],
        tensors: Sequence[TensorInfo],
        device: torch.device | None = None,
    ) -> Mapping[str, Tensor]:
        """Draw the noise of directions of one generation: faster where tensors are small.

        Returns fp32 `[members, *shape]` by name.
        """
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
        stream = NoiseStream(member.run_seed, member.generation, tensor.name)
        size = math.prod(tensor.shape)
        drawn = tensor_noise.normals(stream, [member.direction], size, device=device)
        return drawn.view(tensor.shape)

    def gradient(
        self, update: Update, tensor: TensorInfo, device: torch.device | None = None
    ) -> Tensor:
        """Sum coefficients times noise in order (fp32 multiply, then add: same bits anywhere)."""
        stream = NoiseStream(update.run_seed, update.generation, tensor.name)
        size = math.prod(tensor.shape)
        total = tensor_noise.weighted_sum(stream, update.coefficients, size, device=device)
        return total.view(tensor.shape)


class MatrixDirections(NamedTuple):
    """The directions of one frozen matrix M `[out, in]`, which becomes M + A diag(z) B^T.

    Attributes:
        coordinates: canonical name of z.
        a: `[out, k]`, fp32.
        b: `[in, k]`, fp32.
    """

    coordinates: str
    a: Tensor
    b: Tensor


class CoordinateSpace(DenseSpace):
    """Coordinates z of fixed directions, which all members share; z has dense noise.

    A subclass chooses `matrices` and their `directions` in `begin`.

    Attributes:
        matrices: the matrices that coordinates change; known once the space has begun.
    """

    family = "coordinates"
    searches_weights = False

    def __init__(self) -> None:
        self.matrices: tuple[TensorInfo, ...] = ()

    def directions(self, matrix: TensorInfo) -> MatrixDirections:
        """Return the directions of one of `matrices`, on the CPU."""
        raise NotImplementedError

    def numbers_per_member(self, tensors: Sequence[TensorInfo]) -> int:
        """Count the coordinates."""
        return sum(math.prod(shape) for shape in self.searched_shapes(tensors))

    def changed_weights(self, theta: Theta) -> tuple[TensorInfo, ...]:
        """Return the weights that coordinates change."""
        return self.matrices

    def merge(self, values: dict[str, Tensor], adapted: Sequence[TensorInfo]) -> None:
        """Add A diag(z) B^T to every matrix, on the device of the matrix's directions."""
        for matrix in self.matrices:
            directions = self.directions(matrix)
            z = values[directions.coordinates].cpu()
            add_to_matrix(values, matrix, (directions.a * z) @ directions.b.T)


def add_to_matrix(values: dict[str, Tensor], matrix: TensorInfo, change: Tensor) -> None:
    """Replace a frozen matrix, of any device and dtype, by its sum with an fp32 `[out, in]`."""
    change = change.T if matrix.transposed else change
    values[matrix.name] = values[matrix.name].to(change) + change


def make_space(config: SpaceConfig, run_seed: int = 0) -> BaseSpace:
    """Construct the space that a config section names; some draw their start by the run seed."""
    space: BaseSpace = registry.create("space", config, run_seed=run_seed)
    return space
