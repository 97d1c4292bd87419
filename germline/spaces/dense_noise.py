"""Dense noise on whole tensors: every number of theta moves by itself."""

import math
from collections.abc import Mapping, Sequence

import torch

from germline import tensor_noise
from germline.tensor_noise import NoiseStream
from germline.types import SeedPerturbation, TensorInfo, Update


class DenseNoise:
    """What spaces have in common whose members move tensors and not factors of them."""

    def noises(
        self,
        members: Sequence[SeedPerturbation],
        tensor: TensorInfo,
        device: torch.device | None = None,
    ) -> torch.Tensor:
        """Draw the unit noise of the members' directions, fp32 `[members, *shape]`.

        Args:
            members: all of one generation.
            tensor: what they move.
            device: where the noise is wanted, and drawn; the CPU unless told.
        """
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
    ) -> Mapping[str, torch.Tensor]:
        """Draw the `noises` of many small tensors at once, by name: faster."""
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

    def gradient(
        self, update: Update, tensor: TensorInfo, device: torch.device | None = None
    ) -> torch.Tensor:
        """Sum coefficients times noise in order (fp32 multiply, then add: same bits anywhere)."""
        stream = NoiseStream(update.run_seed, update.generation, tensor.name)
        size = math.prod(tensor.shape)
        total = tensor_noise.weighted_sum(stream, update.coefficients, size, device=device)
        return total.view(tensor.shape)
