"""Full space: every weight moves, with dense noise; tied tensors are searched once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from germline import config, tensor_noise
from germline.spaces.dense_noise import DenseNoise
from germline.spaces.tensor_selection import select_tensors
from germline.tensor_noise import NoiseStream
from germline.types import SeedPerturbation, TensorInfo


class Full(DenseNoise):
    """Dense Gaussian noise on all selected tensors (Qiu et al. 2025, arXiv 2509.24372)."""

    def __init__(self, section: config.Full) -> None:
        self.section = section

    def select(self, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Keep the selected tensors."""
        return select_tensors(tensors, self.section)

    def noise(
        self, member: SeedPerturbation, tensor: TensorInfo, device: torch.device | None = None
    ) -> torch.Tensor:
        """Draw the unit noise of a member's direction, fp32 of the tensor's shape."""
        return self.noises([member], tensor, device)[0]

    def write_perturbed(
        self,
        member: SeedPerturbation,
        tensor: TensorInfo,
        scale: float,
        center: Tensor,
        out: Tensor,
    ) -> None:
        """Write center + scale * noise into `out`, rounded; fp32 of the tensor's size is not held.

        Args:
            member: whose direction.
            tensor: what it moves.
            scale: sign times sigma, in weight units.
            center: fp32.
            out: the serving copy, in the dtype and on the device it is served in.
        """
        stream = NoiseStream(member.run_seed, member.generation, tensor.name)
        tensor_noise.write_perturbed(stream, member.direction, scale, center, out)
