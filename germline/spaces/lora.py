"""LoRA space: theta is an adapter beside frozen linear layers, and members move A and B densely.

A layer computes x W^T + scale (x A^T) B^T, with scale = alpha / rank (Hu et al. 2021, arXiv
2106.09685). Member i has A + s_i sigma eps_A and B + s_i sigma eps_B: what is searched are the
numbers of A and B, and their update is that of dense noise on two small matrices.

Deviations from the usual LoRA, which is made for gradients:

1. B starts random as well: with B = 0 a member that moves A alone is the base model.
2. The starting adapter is a pure function of the run seed (stream `<name>/start`) or the content
   of a PEFT folder, so a run needs no copy of it.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from germline import config, noise
from germline.protocols import BaseModel
from germline.spaces.dense_noise import DenseNoise
from germline.spaces.peft_files import adapter_tensor_infos, read_adapter
from germline.spaces.tensor_selection import check_rank, no_adapted_layers_error, select_linear
from germline.types import TensorInfo


class Lora(DenseNoise):
    """Dense Gaussian noise on the matrices of a LoRA adapter."""

    def __init__(self, section: config.Lora, run_seed: int) -> None:
        self.section = section
        self.run_seed = run_seed
        self.rank = section.rank
        self.scale = section.alpha / section.rank

    def begin(self, base: BaseModel) -> Mapping[TensorInfo, torch.Tensor]:
        """Return the starting adapter: drawn, or that of `space.init_adapter`.

        Raises:
            GermlineError: nothing is selected, the rank exceeds a matrix, or the given adapter
                is of another base model or cannot be continued.
        """
        chosen = select_linear(base.tensors, self.section)
        if self.section.init_adapter is not None:
            stored = read_adapter(Path(self.section.init_adapter))
            stored.check_settings(self.rank, self.section.alpha)
            return stored.beside(base)
        adapter = {}
        for layer in chosen:
            check_rank(self.rank, layer)
            a, b = adapter_tensor_infos(layer, self.rank)
            scale_a = self.section.init_scale_a
            usual = 1 / math.sqrt(layer.out_in_features[1])
            adapter[a] = self._drawn(a, usual if scale_a is None else scale_a)
            adapter[b] = self._drawn(b, self.section.init_scale_b)
        return adapter

    def select(self, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Keep A and B beside the selected linear layers; B alone where A is frozen.

        Raises:
            GermlineError: nothing is left.
        """
        base = [tensor for tensor in tensors if tensor.kind != "adapter"]
        wanted = set()
        for layer in select_linear(base, self.section):
            a, b = layer.adapter_names
            wanted.update({b} if self.section.freeze_a else {a, b})
        kept = tuple(tensor for tensor in tensors if tensor.name in wanted)
        if not kept:
            raise no_adapted_layers_error(self.section)
        return kept

    def _drawn(self, tensor: TensorInfo, deviation: float) -> torch.Tensor:
        size = math.prod(tensor.shape)
        values = noise.weight_noise(self.run_seed, 0, 0, f"{tensor.name}/start", size)
        return torch.from_numpy(values).mul_(deviation).reshape(tensor.shape)
