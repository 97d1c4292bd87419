"""The contract of spaces: which numbers are searched, and what an engine needs to evaluate members.

A part of `germline.protocols`, which exports every name of this module. Tensors are typed here
without importing torch. `germline.spaces.base.BaseSpace` implements most methods of `Space`; the
classes of `germline.spaces` have the further methods that the forward pass of a family needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from germline.types import Perturbation, SeedPerturbation, TensorInfo, Update

if TYPE_CHECKING:
    import torch
    from torch import Tensor


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
    weights: "Mapping[str, torch.Tensor]" = field(default_factory=dict)
    sigma_unit: str = "constant"


@dataclass(frozen=True)
class MemberAdapter:
    """One member as a LoRA adapter for an inference engine.

    Attributes:
        tensors: `<module>.lora_A.weight` `[rank, in]` and `<module>.lora_B.weight` `[out, rank]`
            of every adapted layer, in fp32, under PEFT's names.
    """

    rank: int
    tensors: "Mapping[str, torch.Tensor]"

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
        searched: the tensors that `Space.select` keeps.
        adapted: the linear layers that have a LoRA adapter.
        units: per searched tensor, what sigma and learning rate are multiples of.
    """

    base: BaseModel
    searched: tuple[TensorInfo, ...]
    adapted: tuple[TensorInfo, ...]
    units: dict[str, float]

    def member_values(self, member: Perturbation | None) -> "dict[str, torch.Tensor]":
        """Return all tensors by name; those searched are center + displacement of the member."""


@runtime_checkable
class Space(Protocol):
    """Which numbers are searched, and how a direction changes each tensor.

    Attributes:
        family: how members differ from the center, which decides how an engine runs them in its
            forward pass: `dense`, `low_rank`, `adapter` or `coordinates`.
        searches_weights: whether the searched tensors are parameters of the model; otherwise they
            are additional tensors, which `begin` returns.
        direction_rank: rank of one direction's noise in a matrix; None: full rank.
        adapter_rank: rank of `member_adapters`; None: members cannot be written as LoRA adapters.
    """

    family: str
    searches_weights: bool
    direction_rank: int | None
    adapter_rank: int | None

    def begin(self, base: BaseModel) -> "Mapping[TensorInfo, torch.Tensor]":
        """Return the tensors that the space adds to the model, fp32 on the CPU, in order."""

    def select(self, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Keep the tensors that are searched, in the order given."""

    def searched_shapes(self, tensors: Sequence[TensorInfo]) -> list[tuple[int, ...]]:
        """Return the shapes of the searched tensors in a model of these parameters."""

    def numbers_per_member(self, tensors: Sequence[TensorInfo]) -> int:
        """Count the numbers that a member adds to shared weights; 0: it has weights of its own."""

    def unit(
        self, tensor: TensorInfo, base: BaseModel, start: "Mapping[str, torch.Tensor]"
    ) -> float:
        """Return what sigma and learning rate are multiples of in one searched tensor.

        `start` has all starting tensors by name, those of `begin` included.
        """

    def noise(
        self, member: SeedPerturbation, tensor: TensorInfo, device: "torch.device | None" = None
    ) -> "torch.Tensor":
        """Draw the unit noise of a member's direction (without sign and sigma), as fp32."""

    def mean_squares(self, members: Sequence[SeedPerturbation], tensor: TensorInfo) -> list[float]:
        """Return the mean square of each direction's unit noise in one tensor, of exact sums."""

    def write_perturbed(
        self,
        member: SeedPerturbation,
        tensor: TensorInfo,
        scale: float,
        center: "Tensor",
        out: "Tensor",
    ) -> None:
        """Write center + scale * noise into a serving tensor: fp32 multiply, add, then round."""

    def gradient(
        self, update: Update, tensor: TensorInfo, device: "torch.device | None" = None
    ) -> "torch.Tensor":
        """Sum coefficients times noise over directions, in a fixed order, as fp32.

        The sum is computed on `device`; None is the CPU.
        """

    def changed_weights(self, theta: Theta) -> tuple[TensorInfo, ...]:
        """Return the parameters of the model that members or updates change, in canonical order.

        Empty where theta is an adapter, which inference engines keep apart from the model.
        """

    def merge(self, values: "dict[str, torch.Tensor]", adapted: Sequence[TensorInfo]) -> None:
        """Merge coordinates and an adapter into the weights, by replacing entries of `values`.

        `values` has all tensors of the center or of a member; `adapted` layers have an adapter.
        """

    def write_adapter(
        self,
        folder: Path,
        values: "dict[str, torch.Tensor]",
        adapted: Sequence[TensorInfo],
        base: BaseModel,
    ) -> None:
        """Write the adapter among `values` as a folder that plain `peft` loads."""

    def member_adapters(
        self, members: Sequence[Perturbation | None], theta: Theta
    ) -> list[MemberAdapter]:
        """Return members (None: the center) as LoRA adapters, where `adapter_rank` is set."""
