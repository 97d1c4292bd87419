"""Dense noise on small tensors, such as adapters and coordinates: drawn for all members at once."""

import math
from collections.abc import Sequence

import torch

from germline import noise
from germline.types import Seeded, TensorInfo, Update

SCRATCH = 1 << 22
"""Samples drawn at once for a gradient, over all directions (16 MB)."""


class DenseNoise:
    """What spaces have in common whose theta is small beside the model."""

    def noises(self, members: Sequence[Seeded], tensor: TensorInfo) -> torch.Tensor:
        """Draw the unit noise of the members' directions, fp32 `[members, *shape]`."""
        first = members[0]
        directions = [member.direction for member in members]
        size = math.prod(tensor.shape)
        drawn = noise.normals(first.run_seed, first.generation, directions, tensor.name, size)
        return torch.from_numpy(drawn).reshape(-1, *tensor.shape)

    def gradient(self, update: Update, tensor: TensorInfo) -> torch.Tensor:
        """Sum coefficients times noise in order (fp32 multiply, then add: same bits anywhere)."""
        directions = range(len(update.coefficients))
        total = torch.zeros(math.prod(tensor.shape))
        at_once = max(1, SCRATCH // len(directions))
        for start in range(0, len(total), at_once):
            chunk = total[start : start + at_once]
            rows = noise.normals(
                update.run_seed, update.generation, directions, tensor.name, len(chunk), start
            )
            for row, coefficient in zip(torch.from_numpy(rows), update.coefficients, strict=True):
                chunk.add_(row.mul_(coefficient))
        return total.reshape(tensor.shape)
