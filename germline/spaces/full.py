"""Full space: every weight is searched, with dense noise; tied tensors are searched once."""

from collections.abc import Sequence

from torch import Tensor

from germline import config, tensor_noise
from germline.spaces.base import DenseSpace
from germline.spaces.tensor_selection import select_tensors
from germline.tensor_noise import NoiseStream
from germline.types import SeedPerturbation, TensorInfo


class Full(DenseSpace):
    """Dense Gaussian noise on all selected tensors (Qiu et al. 2025, arXiv 2509.24372)."""

    def __init__(self, section: config.Full, run_seed: int = 0) -> None:
        self.section = section

    def select(self, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Keep the selected tensors."""
        return select_tensors(tensors, self.section)

    def write_perturbed(
        self,
        member: SeedPerturbation,
        tensor: TensorInfo,
        scale: float,
        center: Tensor,
        out: Tensor,
    ) -> None:
        """Write center + scale * noise into `out`, rounded, without an fp32 copy of the tensor."""
        stream = NoiseStream(member.run_seed, member.generation, tensor.name)
        tensor_noise.write_perturbed(stream, member.direction, scale, center, out)
