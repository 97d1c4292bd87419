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
from germline.protocols import Base
from germline.spaces.adapter_files import StoredAdapter, read_adapter
from germline.spaces.selection import select_linear
from germline.types import GermlineError, Perturbation, TensorInfo, Update

SCRATCH = 1 << 22
"""Samples drawn at once for a gradient, over all directions (16 MB)."""


class Lora:
    """Dense Gaussian noise on the matrices of a LoRA adapter."""

    def __init__(self, section: config.Lora, run_seed: int) -> None:
        self.section = section
        self.run_seed = run_seed
        self.rank = section.rank
        self.scale = section.alpha / section.rank

    def begin(self, base: Base) -> Mapping[TensorInfo, torch.Tensor]:
        """Return the starting adapter: drawn, or that of `space.start`.

        Raises:
            GermlineError: nothing is selected, the rank exceeds a matrix, or the given adapter
                is of another base model or cannot be continued.
        """
        chosen = select_linear(base.tensors, self.section)
        if self.section.start is not None:
            return self._given(read_adapter(Path(self.section.start)), base)
        adapter = {}
        for layer in chosen:
            if self.rank > min(layer.shape):
                raise GermlineError(
                    f"space.rank={self.rank} is above the smaller side of {layer.name} "
                    f"{list(layer.shape)}: use at most {min(layer.shape)}"
                )
            a, b = self._parts(layer)
            scale_a = self.section.init_scale_a
            usual = 1 / math.sqrt(layer.sides[1])
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
            raise GermlineError(
                f"space: the adapter of start={self.section.start} has nothing beside the layers "
                f"that include={list(self.section.include)}, exclude={list(self.section.exclude)} "
                f"and layers={self.section.layers!r} select: widen them"
            )
        return kept

    def noises(self, members: Sequence[Perturbation], tensor: TensorInfo) -> torch.Tensor:
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

    def _parts(self, layer: TensorInfo) -> tuple[TensorInfo, TensorInfo]:
        out, into = layer.sides
        a, b = layer.adapter_names
        return (
            TensorInfo(a, (self.rank, into), "adapter", layer.layer),
            TensorInfo(b, (out, self.rank), "adapter", layer.layer),
        )

    def _drawn(self, tensor: TensorInfo, deviation: float) -> torch.Tensor:
        size = math.prod(tensor.shape)
        values = noise.normal(self.run_seed, 0, 0, f"{tensor.name}/start", size)
        return torch.from_numpy(values).mul_(deviation).reshape(tensor.shape)

    def _given(self, stored: StoredAdapter, base: Base) -> Mapping[TensorInfo, torch.Tensor]:
        """Take over a PEFT adapter, once it is sure that it belongs to this model."""
        stored.refuse_another_base(base)
        stored.refuse_other_settings(self.section.rank, self.section.alpha)
        adapter = {}
        left = dict(stored.tensors)
        for layer in base.tensors:
            a, b = layer.adapter_names
            if layer.kind != "linear" or a not in left or b not in left:
                continue
            for part in self._parts(layer):
                tensor = left.pop(part.name)
                if tuple(tensor.shape) != part.shape:
                    raise stored.mismatch(
                        f"{part.name} has shape {list(tensor.shape)} there, but beside "
                        f"{layer.name} {list(layer.shape)} it would be {list(part.shape)}"
                    )
                adapter[part] = tensor
        if left:
            raise stored.mismatch(
                f"it has {min(left)}, beside which this model has no linear layer"
            )
        return adapter
