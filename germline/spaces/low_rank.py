"""Low-rank space: noise A B^T / sqrt(rank) on linear layers; a population shares the base product.

EGGROLL (arXiv 2511.16652). A is `[out, rank]`, B is `[in, rank]`, both standard normal, so every
element of the noise has unit variance; a merged update has rank min(directions x rank, out, in).

Only the linear layers of the decoder blocks are searched: embeddings, norms, biases and the output
head are frozen, because engines that serve members as adapters (LoRA) cannot perturb them, and
results must not depend on the engine. The noise has the layout of the stored weight: where a model
stores weights as `[in, out]` (GPT-2), A is `[in, rank]` and B `[out, rank]`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from germline import config, tensor_noise
from germline.protocols import Members
from germline.spaces.base import BaseSpace, MemberAdapter, Theta
from germline.spaces.peft_files import PREFIX
from germline.spaces.sigma_units import UNITS, exact_dot
from germline.spaces.tensor_selection import factor_sides, select_linear
from germline.tensor_noise import NoiseStream
from germline.types import SeedPerturbation, TensorInfo, Update, as_seed_perturbation


class SharedDirections(NamedTuple):
    """The directions of some members, each once: an antithetic pair shares one.

    Attributes:
        drawn: one member for every direction; the center (None) has none.
        which: `[members]`, the place in `drawn` of each member's direction; 0 for the center.
        scale: `[members]`, sign times sigma; 0 for the center.
    """

    drawn: list[SeedPerturbation]
    which: torch.Tensor
    scale: torch.Tensor

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


class LowRank(BaseSpace):
    """Rank-r Gaussian noise on the selected linear layers."""

    family = "low_rank"

    def __init__(self, section: config.LowRank, run_seed: int = 0) -> None:
        self.section = section
        self.rank = self.direction_rank = self.adapter_rank = section.rank

    def select(self, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Keep the selected linear layers of the decoder blocks."""
        return select_linear(tensors, self.section)

    def numbers_per_member(self, tensors: Sequence[TensorInfo]) -> int:
        """Count the numbers of A and B in all selected layers."""
        return self.rank * factor_sides(self.select(tensors))

    def factors(
        self,
        of: SeedPerturbation | Update,
        directions: Sequence[int],
        tensor: TensorInfo,
        device: torch.device | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw A `[directions, rows, rank]`, 1/sqrt(rank) included, and B, of the columns.

        `of` has the run seed and the generation.
        """
        a, b = (
            tensor_noise.normals(
                NoiseStream(of.run_seed, of.generation, f"{tensor.name}/{side}"),
                directions,
                size * self.rank,
                device=device,
            ).view(len(directions), size, self.rank)
            for side, size in zip("ab", tensor.shape, strict=True)
        )
        return a.mul_(1 / math.sqrt(self.rank)), b

    def sides(
        self,
        members: Sequence[SeedPerturbation],
        tensor_sides: Sequence[tuple[TensorInfo, int]],
        device: torch.device | None = None,
    ) -> torch.Tensor:
        """Draw A (side 0) or B (side 1) of many tensors: `[members, sum of side x rank]`.

        The numbers are those of `factors`, each `[side, rank]`, tensor after tensor. One call for
        all tensors is several times faster than `factors` where matrices are small.
        """
        first = members[0]
        sizes = {
            f"{tensor.name}/{'ab'[side]}": tensor.shape[side] * self.rank
            for tensor, side in tensor_sides
        }
        directions = [member.direction for member in members]
        drawn = tensor_noise.concatenated_noise(
            first.run_seed, first.generation, directions, sizes, device
        )
        if self.rank > 1:
            parts = drawn.split(list(sizes.values()), dim=1)
            for (_, side), part in zip(tensor_sides, parts, strict=True):
                if side == 0:
                    part.mul_(1 / math.sqrt(self.rank))
        return drawn

    def noise(
        self, member: SeedPerturbation, tensor: TensorInfo, device: torch.device | None = None
    ) -> torch.Tensor:
        """Draw A B^T of a member's direction, fp32 of the tensor's shape."""
        a, b = self.factors(member, [member.direction], tensor)
        return (a[0] @ b[0].T).to(device)

    def mean_squares(self, members: Sequence[SeedPerturbation], tensor: TensorInfo) -> list[float]:
        """Return |A B^T|^2 / size: the sum of (a_p . a_q) (b_p . b_q) over pairs of columns p, q.

        The product A B^T itself is never computed.
        """
        size = math.prod(tensor.shape)
        directions = [member.direction for member in members]
        a, b = (side.numpy() for side in self.factors(members[0], directions, tensor))
        pairs = [(p, q) for p in range(self.rank) for q in range(self.rank)]
        return [
            sum(
                exact_dot(a[k, :, p], a[k, :, q]) * exact_dot(b[k, :, p], b[k, :, q])
                for p, q in pairs
            )
            / size
            / UNITS**2
            for k in range(len(members))
        ]

    def gradient(
        self, update: Update, tensor: TensorInfo, device: torch.device | None = None
    ) -> torch.Tensor:
        """Sum coefficients times A B^T in order (fp32 multiply, then add: the same bits anywhere).

        A matrix product would be faster, but the order of its sums depends on the library and the
        thread count.
        """
        directions = range(len(update.coefficients))
        a, b = self.factors(update, directions, tensor, device)
        coefficients = torch.tensor(update.coefficients, dtype=torch.float32, device=a.device)
        a = a.mul_(coefficients[:, None, None])
        # The columns of all directions become rows, in the order in which they are added.
        return tensor_noise.outer_sum(a.mT.flatten(0, 1), b.mT.flatten(0, 1))

    def member_adapters(self, members: Members, theta: Theta) -> list[MemberAdapter]:
        """Return the noise A B^T of members times sign, sigma and unit; that of the center is 0.

        All factors are multiplied into lora_B in fp32, and `lora_alpha` is the rank, so an engine
        multiplies by 1 whether or not it supports rank-stabilized scaling. Every direction is drawn
        once: an antithetic pair shares it.
        """
        shared = SharedDirections.of(members)
        adapters: list[dict[str, torch.Tensor]] = [{} for _ in members]
        for info in theta.searched:
            left, right = self._output_and_input_sides(shared, info)
            scales = shared.scale * theta.units[info.name]
            lora_a, lora_b = (PREFIX + name for name in info.adapter_names)
            for tensors, which, scale in zip(adapters, shared.which, scales, strict=True):
                tensors[lora_a] = right[which].T.contiguous()
                tensors[lora_b] = left[which] * scale
        return [MemberAdapter(self.rank, tensors) for tensors in adapters]

    def _output_and_input_sides(
        self, shared: SharedDirections, info: TensorInfo
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the factors of a layer's outputs and of its inputs, `[directions, side, rank]`."""
        if not shared.drawn:  # all members are the center
            out, into = info.out_in_features
            return torch.zeros(1, out, self.rank), torch.zeros(1, into, self.rank)
        directions = [member.direction for member in shared.drawn]
        first, second = self.factors(shared.drawn[0], directions, info)
        return (second, first) if info.transposed else (first, second)
