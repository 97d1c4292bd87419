"""Low-rank space: noise A B^T / sqrt(rank) on linear layers; a population shares the base product.

EGGROLL (arXiv 2511.16652). A is `[out, rank]`, B is `[in, rank]`, both standard normal, so every
element of the noise has unit variance; a merged update has rank min(directions x rank, out, in).

Only the linear layers of the decoder blocks are searched: embeddings, norms, biases and the output
head stay as they are, because engines that serve members as adapters (LoRA) cannot perturb them,
and results must not depend on the engine. The noise has the layout of the stored weight: where a
model keeps weights as `[in, out]` (GPT-2), A is `[in, rank]` and B `[out, rank]`.
"""

import math
from collections.abc import Sequence

import torch

from germline import config, tensor_noise
from germline.spaces.tensor_selection import check_rank, select_linear
from germline.tensor_noise import NoiseStream
from germline.types import SeedPerturbation, TensorInfo, Update


class LowRank:
    """Rank-r Gaussian noise on the selected linear layers."""

    def __init__(self, section: config.LowRank) -> None:
        self.section = section
        self.rank = section.rank

    def select(self, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Keep the selected linear layers of the decoder blocks.

        Raises:
            GermlineError: nothing is left, the rank exceeds a matrix, or a layer is unsupported.
        """
        kept = select_linear(tensors, self.section)
        for tensor in kept:
            check_rank(self.rank, tensor, ", or use space.kind=full")
        return kept

    def factors(
        self, members: Sequence[SeedPerturbation], tensor: TensorInfo
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw A `[members, rows, rank]`, 1/sqrt(rank) included; B `[members, columns, rank]`."""
        first = members[0]
        directions = [member.direction for member in members]
        return self._draw(first.run_seed, first.generation, directions, tensor)

    def sides(
        self,
        members: Sequence[SeedPerturbation],
        wanted: Sequence[tuple[TensorInfo, int]],
        device: torch.device | None = None,
    ) -> torch.Tensor:
        """Draw A (side 0) or B (side 1) of many tensors: `[members, sum of side x rank]`.

        The numbers of `factors`, each `[side, rank]`, one after another: several times faster than
        tensor by tensor where matrices are small.
        """
        first = members[0]
        sizes = {
            f"{tensor.name}/{'ab'[side]}": tensor.shape[side] * self.rank for tensor, side in wanted
        }
        directions = [one.direction for one in members]
        drawn = tensor_noise.concatenated_noise(
            first.run_seed, first.generation, directions, sizes, device
        )
        if self.rank > 1:
            parts = drawn.split(list(sizes.values()), dim=1)
            for (_, side), part in zip(wanted, parts, strict=True):
                if side == 0:
                    part.mul_(1 / math.sqrt(self.rank))
        return drawn

    def gradient(
        self, update: Update, tensor: TensorInfo, device: torch.device | None = None
    ) -> torch.Tensor:
        """Sum coefficients times A B^T in order (fp32 multiply, then add: the same bits anywhere).

        A matrix product would be faster but its summation order depends on the library and the
        thread count.
        """
        directions = range(len(update.coefficients))
        a, b = self._draw(update.run_seed, update.generation, directions, tensor, device)
        coefficients = torch.tensor(update.coefficients, dtype=torch.float32, device=a.device)
        a = a.mul_(coefficients[:, None, None])
        # The columns of every direction below each other, in the order in which they are added.
        return tensor_noise.outer_sum(a.mT.flatten(0, 1), b.mT.flatten(0, 1))

    def _draw(
        self,
        run_seed: int,
        generation: int,
        directions: Sequence[int],
        tensor: TensorInfo,
        device: torch.device | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, columns = tensor.shape
        sides = (("a", rows), ("b", columns))
        a, b = (
            tensor_noise.normals(
                NoiseStream(run_seed, generation, f"{tensor.name}/{side}"),
                directions,
                size * self.rank,
                device=device,
            ).view(len(directions), size, self.rank)
            for side, size in sides
        )
        return a.mul_(1 / math.sqrt(self.rank)), b
