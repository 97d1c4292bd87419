"""Members as LoRA adapters, the way inference engines take them: W + lora_B lora_A.

- low_rank: the noise A B^T of a layer, times sign, sigma and unit; the center's is 0.
- lora: theta is an adapter already; a member's is the center's, moved by dense noise.

Everything that scales is multiplied into lora_B in fp32, and `lora_alpha` is the rank, so that
servers multiply by 1: rank-stabilised scaling, which some leave out, makes no difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from germline.engines.batched_lora import SharedDirections
from germline.engines.master_weights import Masters
from germline.protocols import AdapterSpace, LowRankSpace
from germline.spaces.peft_files import PREFIX
from germline.types import Perturbation, TensorInfo, as_seed_perturbation


@dataclass(frozen=True)
class MemberAdapter:
    """One member beside the linear layers.

    Attributes:
        tensors: `<module>.lora_A.weight` `[rank, in]` and `<module>.lora_B.weight` `[out, rank]`
            of every searched layer, in fp32, under PEFT's names.
    """

    rank: int
    tensors: Mapping[str, Tensor]

    def config(self) -> dict[str, object]:
        """Return what PEFT's `adapter_config.json` says of it."""
        parts = (name.removesuffix(".lora_A.weight") for name in self.tensors)
        modules = sorted({part.rpartition(".")[2] for part in parts if ".lora_B." not in part})
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": self.rank,
            "lora_alpha": self.rank,
            "target_modules": modules,
            "bias": "none",
        }


def serves_adapters(masters: Masters) -> bool:
    """Tell whether members of this space are adapters."""
    return isinstance(masters.space, LowRankSpace | AdapterSpace)


def adapted_layers(masters: Masters) -> tuple[TensorInfo, ...]:
    """Return the linear layers beside which adapters stand."""
    return masters.adapted if isinstance(masters.space, AdapterSpace) else masters.searched


def member_adapters(
    masters: Masters, members: Sequence[Perturbation | None]
) -> list[MemberAdapter]:
    """Work out the adapters of members; None is the center."""
    space = masters.space
    if isinstance(space, LowRankSpace):
        return _of_noise(masters, space, members)
    if isinstance(space, AdapterSpace):
        return [_of_theta(masters, space, member) for member in members]
    raise TypeError(f"members of {type(space).__name__} are no adapters")


def _of_noise(
    masters: Masters, space: LowRankSpace, members: Sequence[Perturbation | None]
) -> list[MemberAdapter]:
    """Draw every direction once; a pair shares it."""
    shared = SharedDirections.of(
        [one if one is None else as_seed_perturbation(one) for one in members]
    )
    found: list[dict[str, Tensor]] = [{} for _ in members]
    for info in masters.searched:
        left, right = _factors(space, shared, info)
        scales = shared.scale * masters.units[info.name]
        for tensors, which, scale in zip(found, shared.which, scales, strict=True):
            lora_a, lora_b = (PREFIX + name for name in info.adapter_names)
            tensors[lora_a] = right[which].T.contiguous()
            tensors[lora_b] = left[which] * scale
    return [MemberAdapter(space.rank, tensors) for tensors in found]


def _factors(
    space: LowRankSpace, shared: SharedDirections, info: TensorInfo
) -> tuple[Tensor, Tensor]:
    """Return what stands on the layer's output side and on its input side, `[n, side, rank]`."""
    if not shared.drawn:  # nothing but the center
        out, into = info.out_in_features
        return torch.zeros(1, out, space.rank), torch.zeros(1, into, space.rank)
    first, second = space.factors(shared.drawn, info)
    return (second, first) if info.transposed else (first, second)


def _of_theta(masters: Masters, space: AdapterSpace, member: Perturbation | None) -> MemberAdapter:
    tensors: dict[str, Tensor] = {}
    searched = {info.name: info for info in masters.searched}
    for layer in masters.adapted:
        for name in layer.adapter_names:
            value = masters.tensors[name].cpu().clone()
            if member is not None and name in searched:
                value += masters.displacements([member], searched[name])[0].cpu()
            tensors[PREFIX + name] = value
        tensors[PREFIX + layer.adapter_names[1]] *= space.scale
    return MemberAdapter(space.rank, tensors)
