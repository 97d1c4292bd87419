"""Full space: every weight moves, with dense noise; tied tensors are searched once."""

from collections.abc import Sequence

import torch

from germline import config, noise
from germline.spaces.selection import select
from germline.types import Seeded, TensorInfo, Update

CHUNK = 1 << 20
"""Elements summed at once: scratch memory stays small beside the tensor itself."""


class Full:
    """Dense Gaussian noise on all selected tensors (Qiu et al. 2025, arXiv 2509.24372)."""

    def __init__(self, section: config.Full) -> None:
        self.section = section

    def select(self, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Keep the selected tensors."""
        return select(tensors, self.section)

    def noise(self, member: Seeded, tensor: TensorInfo) -> torch.Tensor:
        """Draw the unit noise of a member's direction, fp32 of the tensor's shape."""
        size = _size(tensor)
        values = noise.normal(
            member.run_seed, member.generation, member.direction, tensor.name, size
        )
        return torch.from_numpy(values).reshape(tensor.shape)

    def gradient(self, update: Update, tensor: TensorInfo) -> torch.Tensor:
        """Sum coefficients times noise in order (fp32 multiply, then add: same bits anywhere)."""
        size = _size(tensor)
        total = torch.zeros(size)
        for start in range(0, size, CHUNK):
            chunk = total[start : start + CHUNK]
            for direction, coefficient in enumerate(update.coefficients):
                values = noise.normal(
                    update.run_seed, update.generation, direction, tensor.name, len(chunk), start
                )
                chunk.add_(torch.from_numpy(values).mul_(coefficient))
        return total.reshape(tensor.shape)


def _size(tensor: TensorInfo) -> int:
    return int(torch.Size(tensor.shape).numel())
