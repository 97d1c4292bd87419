"""Theta as plain tensors: what is beside or in front of the base weights, merged or written out."""

import logging
from pathlib import Path

from torch import Tensor

from germline.engines.master_weights import Masters
from germline.protocols import AdapterSpace, CoordinateSpace
from germline.spaces.peft_files import write_adapter
from germline.types import GermlineError, Perturbation

log = logging.getLogger(__name__)

EXPERT_NAMES = (".gate_proj", ".up_proj", ".down_proj", ".w1", ".w2", ".w3")
"""Last names of layers that transformers 4 had one of per expert."""


def merged_tensors(masters: Masters, member: Perturbation | None = None) -> dict[str, Tensor]:
    """Return the base model's tensors as a member (None: the center) has them.

    Its displacement is added, then what its coordinates move, then the adapter: W + scale * B A.
    """
    values = _values(masters, member)
    space = masters.space
    if isinstance(space, AdapterSpace | CoordinateSpace):
        for layer in masters.adapted:
            a, b = (values[name] for name in layer.adapter_names)
            change = (b @ a).mul_(space.scale)
            change = change.T if layer.transposed else change
            values[layer.name] = _added(values[layer.name], change)
    return {info.name: values[info.name] for info in masters.base.tensors}


def save_adapter(masters: Masters, folder: Path) -> None:
    """Write the center's adapter as a folder that plain `peft` loads.

    Raises:
        GermlineError: there is none in what is searched.
    """
    space = masters.space
    if not isinstance(space, AdapterSpace | CoordinateSpace) or not masters.adapted:
        raise GermlineError(
            f"export: {type(space).__name__} has no adapter to write; only space.kind=lora, "
            "or singular with space.init_adapter, has one"
        )
    _warn_of_peft(masters)
    values = _values(masters, None)
    adapter = {name: values[name] for layer in masters.adapted for name in layer.adapter_names}
    rank = len(adapter[masters.adapted[0].adapter_names[0]])
    write_adapter(folder, adapter, masters.adapted, alpha=space.scale * rank, base=masters.base)


def _warn_of_peft(masters: Masters) -> None:
    """Say which layers of a mixture plain `peft` may take for its experts.

    peft 0.21 reads these names in adapters of most mixtures as those of experts, as checkpoints of
    transformers 4 had them, and then leaves out dense layers and shared experts without an error.
    """
    if not any(info.kind == "expert" for info in masters.base.tensors):
        return
    names = [layer.name.removesuffix(".weight") for layer in masters.adapted]
    if taken := [name for name in names if name.endswith(EXPERT_NAMES)]:
        log.warning(
            "export: %s is a mixture of experts, and peft may take %s and %d more layers of the "
            "adapter for its experts and not load them; compare the logits, or write the merged "
            "model (--merged); space.exclude=['*.mlp.*'] leaves such layers out of a run",
            *(masters.base.source, taken[0], len(taken) - 1),
        )


def _values(masters: Masters, member: Perturbation | None) -> dict[str, Tensor]:
    """Return all tensors as a member has them, with what its coordinates move."""
    values = dict(masters.tensors)
    if member is not None:
        if masters.space is None:
            masters.check_members_supported([member])
        for info in masters.searched:
            moved = masters.displacements([member], info)[0]
            values[info.name] = moved.add_(values[info.name])
    if isinstance(masters.space, CoordinateSpace):
        for matrix in masters.space.matrices:
            directions = masters.space.directions(matrix)
            z = values[directions.coordinates].cpu()
            change = (directions.a * z) @ directions.b.T
            change = change.T if matrix.transposed else change
            values[matrix.name] = _added(values[matrix.name], change)
    return values


def _added(frozen: Tensor, change: Tensor) -> Tensor:
    """Add an fp32 change to a frozen tensor, which may lie on another device and be narrower."""
    return frozen.to(change) + change
