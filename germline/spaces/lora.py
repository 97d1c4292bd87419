"""LoRA space: theta is an adapter of frozen linear layers; members have dense noise on A and B.

A layer computes x W^T + scale (x A^T) B^T, with scale = alpha / rank (Hu et al. 2021, arXiv
2106.09685). Member i has A + s_i sigma eps_A and B + s_i sigma eps_B: the numbers of A and B are
searched, and their update is that of dense noise on two small matrices.

With `strategy.sigma_unit` other than `rms`, the unit of A and B is that of the adapted layer. With
`rms`, sigma is a share of every tensor, so multiplying one layer by a factor and dividing the next
by it changes nothing about a search:

    A    root mean square of the starting A, or 1 / sqrt(in) where that is 0
    B    rms(W) / (scale sqrt(rank) unit(A)): noise of B changes scale B A by sigma rms(W)

Deviations from the usual LoRA, which is trained by gradients:

1. B starts random as well: with B = 0 a member that changes A alone is the base model.
2. The starting adapter is a pure function of the run seed (stream `<name>/start`) or the content
   of a PEFT folder, so a run needs no copy of it.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from germline import config, noise
from germline.protocols import Members
from germline.spaces.base import BaseModel, DenseSpace, MemberAdapter, Theta, add_to_matrix
from germline.spaces.peft_files import PREFIX, adapter_tensor_infos, read_adapter
from germline.spaces.sigma_units import measure_unit, root_mean_square
from germline.spaces.tensor_selection import factor_sides, select_linear
from germline.types import GermlineError, TensorInfo


class Lora(DenseSpace):
    """Dense Gaussian noise on the matrices of a LoRA adapter."""

    family = "adapter"
    searches_weights = False

    def __init__(self, section: config.Lora, run_seed: int) -> None:
        self.section = section
        self.run_seed = run_seed
        self.rank = self.adapter_rank = section.rank
        self.scale = section.alpha / section.rank

    def begin(self, base: BaseModel) -> Mapping[TensorInfo, torch.Tensor]:
        """Return the starting adapter: drawn, or that of `space.init_adapter`."""
        chosen = select_linear(base.tensors, self.section)
        if self.section.init_adapter is not None:
            stored = read_adapter(Path(self.section.init_adapter))
            stored.check_settings(self.rank, self.section.alpha)
            return stored.tensors_beside(base)
        adapter = {}
        for layer in chosen:
            a, b = adapter_tensor_infos(layer, self.rank)
            scale_a = self.section.init_scale_a
            usual = 1 / math.sqrt(layer.out_in_features[1])
            adapter[a] = self._drawn(a, usual if scale_a is None else scale_a)
            adapter[b] = self._drawn(b, self.section.init_scale_b)
        return adapter

    def select(self, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Keep A and B of the selected linear layers; B alone where A is frozen."""
        base = [tensor for tensor in tensors if tensor.kind != "adapter"]
        names = set()
        for layer in select_linear(base, self.section):
            a, b = layer.adapter_names
            names.update({b} if self.section.freeze_a else {a, b})
        kept = tuple(tensor for tensor in tensors if tensor.name in names)
        if not kept:
            raise GermlineError(
                f"space.init_adapter={self.section.init_adapter}: the adapter has no factors for "
                f"the layers that include={list(self.section.include)}, "
                f"exclude={list(self.section.exclude)} and layers={self.section.layers!r} select: "
                "widen them"
            )
        return kept

    def searched_shapes(self, tensors: Sequence[TensorInfo]) -> list[tuple[int, ...]]:
        """Return the shapes of A and B of the selected layers; B alone where A is frozen."""
        layers = select_linear(tensors, self.section)
        pairs = [adapter_tensor_infos(layer, self.rank) for layer in layers]
        return [part.shape for pair in pairs for part in pair[int(self.section.freeze_a) :]]

    def numbers_per_member(self, tensors: Sequence[TensorInfo]) -> int:
        """Count the numbers of A and B of all selected layers."""
        return self.rank * factor_sides(select_linear(tensors, self.section))

    def unit(self, tensor: TensorInfo, base: BaseModel, start: Mapping[str, torch.Tensor]) -> float:
        """Return the unit of A or B, as the docstring of this module defines it."""
        layer = next(info for info in base.tensors if tensor.name in info.adapter_names)
        if base.sigma_unit != "rms":
            return measure_unit(base.sigma_unit, layer.name, start[layer.name])
        a = start[layer.adapter_names[0]]
        unit_of_a = root_mean_square(a) or 1 / math.sqrt(a.shape[1])
        if tensor.name == layer.adapter_names[0]:
            return unit_of_a
        unit_of_layer = measure_unit(base.sigma_unit, layer.name, start[layer.name])
        return unit_of_layer / (abs(self.scale) * math.sqrt(self.rank) * unit_of_a)

    def changed_weights(self, theta: Theta) -> tuple[TensorInfo, ...]:
        """Return no parameter of the model: members are adapters."""
        return ()

    def merge(self, values: dict[str, torch.Tensor], adapted: Sequence[TensorInfo]) -> None:
        """Add scale * B A to the adapted layers."""
        for layer in adapted:
            a, b = (values[name] for name in layer.adapter_names)
            add_to_matrix(values, layer, (b @ a).mul_(self.scale))

    def member_adapters(self, members: Members, theta: Theta) -> list[MemberAdapter]:
        """Return the adapter of each member, with the factor scale multiplied into lora_B in fp32.

        `lora_alpha` is the rank, so an engine multiplies by 1 whether or not it supports
        rank-stabilized scaling.
        """
        adapters = []
        for values in map(theta.member_values, members):
            tensors = {}
            for lora_a, lora_b in (layer.adapter_names for layer in theta.adapted):
                tensors[PREFIX + lora_a] = values[lora_a].cpu().clone()
                tensors[PREFIX + lora_b] = values[lora_b].cpu() * self.scale
            adapters.append(MemberAdapter(self.rank, tensors))
        return adapters

    def _drawn(self, tensor: TensorInfo, deviation: float) -> torch.Tensor:
        size = math.prod(tensor.shape)
        values = noise.weight_noise(self.run_seed, 0, 0, f"{tensor.name}/start", size)
        return torch.from_numpy(values).mul_(deviation).reshape(tensor.shape)
