"""The verbs of spaces: which numbers are searched, and what an engine is given to serve them.

A part of `germline.protocols`, from where it is imported. Tensors are typed here without importing
torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from germline.types import SeedPerturbation, TensorInfo, Update

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@runtime_checkable
class Space(Protocol):
    """Which numbers are searched, and how a direction changes each tensor."""

    def select(self, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Keep the tensors that are searched, in the order given."""

    def gradient(
        self, update: Update, tensor: TensorInfo, device: "torch.device | None" = None
    ) -> "torch.Tensor":
        """Sum coefficients times noise over directions, in a fixed order, as fp32.

        It is computed where it is wanted: on the device, which is the CPU unless told.
        """


@runtime_checkable
class DenseSpace(Space, Protocol):
    """A space whose members change whole tensors: served one member after another, in place."""

    def noise(
        self, member: SeedPerturbation, tensor: TensorInfo, device: "torch.device | None" = None
    ) -> "torch.Tensor":
        """Draw the unit noise of a member's direction (without sign and sigma), as fp32."""

    def write_perturbed(
        self,
        member: SeedPerturbation,
        tensor: TensorInfo,
        scale: float,
        center: "Tensor",
        out: "Tensor",
    ) -> None:
        """Write center + scale * noise into a serving tensor: fp32 multiply, add, then round."""


@runtime_checkable
class LowRankSpace(Space, Protocol):
    """A space whose members are low-rank corrections: a population is served in one batch."""

    rank: int

    def factors(
        self, members: Sequence[SeedPerturbation], tensor: TensorInfo
    ) -> tuple["torch.Tensor", "torch.Tensor"]:
        """Draw A `[members, rows, rank]` and B `[members, columns, rank]`.

        A B^T is the unit noise, in the layout of the stored weight.
        """

    def sides(
        self,
        members: Sequence[SeedPerturbation],
        wanted: Sequence[tuple[TensorInfo, int]],
        device: "torch.device | None" = None,
    ) -> "torch.Tensor":
        """Draw the A (side 0) or B (side 1) of many tensors, `[members, sum of side x rank]`.

        What `factors` draws, each `[side, rank]`, one after another; on a device, or the CPU.
        """


def _weight_units(_name: str, _tensor: "torch.Tensor") -> float:
    return 1.0


@dataclass(frozen=True)
class BaseModel:
    """The model on which an adapter or coordinates are begun.

    Attributes:
        source: the folder or Hugging Face id it was loaded from.
        tensors: what it consists of.
        digest: computes the digest of its fp32 weights.
        weights: those, by canonical name.
        unit: measures a tensor of a name: 1, mean |W| or std W, as `strategy.sigma_unit` says.
    """

    source: str
    tensors: tuple[TensorInfo, ...]
    digest: Callable[[], str]
    weights: "Mapping[str, torch.Tensor]" = field(default_factory=dict)
    unit: "Callable[[str, torch.Tensor], float]" = _weight_units


@runtime_checkable
class AdapterSpace(Space, Protocol):
    """A space whose theta is a LoRA adapter beside frozen weights: a population in one batch.

    A linear layer `m.weight` is served as W + scale * B A, with theta `m.lora_A.weight`
    `[rank, in]` and `m.lora_B.weight` `[out, rank]`; members move A and B by dense noise.
    """

    rank: int
    scale: float

    def begin(self, base: BaseModel) -> "Mapping[TensorInfo, torch.Tensor]":
        """Return the starting adapter, as fp32 on the CPU, in canonical order."""

    def noises(
        self,
        members: Sequence[SeedPerturbation],
        tensor: TensorInfo,
        device: "torch.device | None" = None,
    ) -> "torch.Tensor":
        """Draw the unit noise of the members' directions, fp32 `[members, *shape]`."""

    def noises_of(
        self,
        members: Sequence[SeedPerturbation],
        tensors: Sequence[TensorInfo],
        device: "torch.device | None" = None,
    ) -> "Mapping[str, torch.Tensor]":
        """Draw the `noises` of many tensors at once, by name; on a device, or the CPU."""


class MatrixDirections(NamedTuple):
    """How coordinates z move a frozen matrix M `[out, in]`: it is served as M + A diag(z) B^T.

    Attributes:
        coordinates: canonical name of z.
        a: `[out, k]`, fp32.
        b: `[in, k]`, fp32.
    """

    coordinates: str
    a: "torch.Tensor"
    b: "torch.Tensor"


@runtime_checkable
class CoordinateSpace(Space, Protocol):
    """A space whose theta is coordinates of fixed directions: a population in one batch.

    The matrices they move are frozen: weights of linear layers, or A and B of a given adapter,
    which is served as W + scale * B A. All members share the directions and differ in the
    coordinates.
    """

    scale: float
    matrices: tuple[TensorInfo, ...]

    def begin(self, base: BaseModel) -> "Mapping[TensorInfo, torch.Tensor]":
        """Return the given adapter, if any, and then the coordinates, all 0: fp32 on the CPU."""

    def directions(self, matrix: TensorInfo) -> MatrixDirections:
        """Return the directions of one of `matrices`, on the CPU."""

    def unit(self, coordinates: TensorInfo) -> float:
        """Return what sigma and learning rate of some coordinates are multiples of."""

    def noises(
        self,
        members: Sequence[SeedPerturbation],
        tensor: TensorInfo,
        device: "torch.device | None" = None,
    ) -> "torch.Tensor":
        """Draw the unit noise of the members' directions, fp32 `[members, *shape]`."""
