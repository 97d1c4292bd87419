"""Full space: every weight moves, with dense noise; tied tensors are searched once."""

from collections.abc import Sequence

import torch

from germline import config
from germline.spaces.dense_noise import DenseNoise
from germline.spaces.selection import select
from germline.types import Seeded, TensorInfo


class Full(DenseNoise):
    """Dense Gaussian noise on all selected tensors (Qiu et al. 2025, arXiv 2509.24372)."""

    def __init__(self, section: config.Full) -> None:
        self.section = section

    def select(self, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Keep the selected tensors."""
        return select(tensors, self.section)

    def noise(
        self, member: Seeded, tensor: TensorInfo, device: torch.device | None = None
    ) -> torch.Tensor:
        """Draw the unit noise of a member's direction, fp32 of the tensor's shape."""
        return self.noises([member], tensor, device)[0]
