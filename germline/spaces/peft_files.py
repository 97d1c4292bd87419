"""Read and write PEFT adapter folders: `adapter_config.json` and `adapter_model.safetensors`.

Plain `peft` reads these folders, and folders of `peft` are read here; `peft` need not be installed.
The file of tensors also stores the digest of the base model (as metadata, which `peft` ignores), so
a run never starts from an adapter of this project on another model.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from germline.types import GermlineError, TensorInfo

if TYPE_CHECKING:
    from germline.spaces.base import BaseModel

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""PEFT's prefix of the names of the base model's modules."""

DIGEST = "base_digest"

EXPERT_NAMES = (".gate_proj", ".up_proj", ".down_proj", ".w1", ".w2", ".w3")
"""Last names of layers of which transformers 4 had one per expert."""

EXPERT_WEIGHTS = tuple(f"{name}.weight" for name in EXPERT_NAMES)

WRITTEN: Mapping[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "use_rslora": False,
    "use_dora": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
}
PLAIN: Mapping[str, Any] = {
    **WRITTEN,
    "lora_bias": False,
    "target_parameters": None,
    "trainable_token_indices": None,
}
"""PEFT settings with which an adapter is W + alpha / r * B A in every layer; the last three are not
written, as older versions of PEFT do not know them."""


@dataclass(frozen=True)
class StoredAdapter:
    """The content of an adapter folder.

    Attributes:
        tensors: by canonical name, fp32.
        base: the name of the base model in `adapter_config.json`.
        base_digest: digest of the base model's weights, where this project wrote the adapter.
    """

    folder: Path
    rank: int
    alpha: float
    base: str
    base_digest: str | None
    tensors: Mapping[str, torch.Tensor]

    def check_base(self, base: "BaseModel") -> None:
        """Compare the digests of the weights where they are known, else the names of the models."""
        if self.base_digest is not None:
            if (found := base.digest()) != self.base_digest:
                raise self.mismatch(
                    f"it was trained on {self.base or 'a model'} with weights of digest "
                    f"{self.base_digest[:16]}, but model={base.source} has {found[:16]}"
                )
        elif self.base and _last_name(self.base) != _last_name(base.source):
            raise self.mismatch(
                f"its base_model_name_or_path is {self.base!r}, but model={base.source!r} (if "
                f"that is the same model, write this name into {CONFIG})"
            )

    def check_settings(self, rank: int, alpha: float) -> None:
        """Check that the config has the rank and alpha of the adapter."""
        if (rank, alpha) != (self.rank, self.alpha):
            raise GermlineError(
                f"space.rank={rank} and space.alpha={alpha:g} are not those of the adapter "
                f"space.init_adapter={self.folder}: set space.rank={self.rank} and "
                f"space.alpha={self.alpha:g}"
            )

    def tensors_beside(self, base: "BaseModel") -> Mapping[TensorInfo, torch.Tensor]:
        """Return A and B of the layers of a model, in the order of the layers."""
        self.check_base(base)
        adapter = {}
        left = dict(self.tensors)
        for layer in base.tensors:
            a, b = layer.adapter_names
            if layer.kind != "linear" or a not in left or b not in left:
                continue
            for part in adapter_tensor_infos(layer, self.rank):
                tensor = left.pop(part.name)
                if tuple(tensor.shape) != part.shape:
                    raise self.mismatch(
                        f"{part.name} has shape {list(tensor.shape)} there, but beside "
                        f"{layer.name} {list(layer.shape)} it would be {list(part.shape)}"
                    )
                adapter[part] = tensor
        if left:
            raise self.mismatch(f"it has {min(left)}, beside which this model has no linear layer")
        return adapter

    def mismatch(self, found: str) -> GermlineError:
        """Make the error of an adapter that belongs to another base model."""
        return GermlineError(
            f"space.init_adapter: the adapter {self.folder} is of another base model: {found}. "
            "Use the model it was trained on, or a random adapter (space.init_adapter=null)"
        )


def adapter_tensor_infos(layer: TensorInfo, rank: int) -> tuple[TensorInfo, TensorInfo]:
    """Describe the A and B of a linear layer."""
    out, into = layer.out_in_features
    a, b = layer.adapter_names
    return (
        TensorInfo(a, (rank, into), "adapter", layer.layer),
        TensorInfo(b, (out, rank), "adapter", layer.layer),
    )


def read_adapter(folder: Path) -> StoredAdapter:
    """Read a PEFT folder; the adapter must be W + alpha / r * B A."""
    tensors = {}
    try:
        settings = dict(json.loads((folder / CONFIG).read_bytes()))
        _check_plain(folder, settings)
        with safe_open(folder / TENSORS, framework="pt") as file:
            metadata = file.metadata() or {}
            for key in file.keys():  # noqa: SIM118 - not a dict
                tensors[key.removeprefix(PREFIX)] = file.get_tensor(key).float()
        rank, alpha = int(settings["r"]), float(settings["lora_alpha"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise GermlineError(
            f"space.init_adapter: {str(folder)!r} is no PEFT adapter ({type(error).__name__}: "
            f"{error}): give a folder that holds {CONFIG} and {TENSORS}"
        ) from error
    base = str(settings.get("base_model_name_or_path") or "")
    return StoredAdapter(folder, rank, alpha, base, metadata.get(DIGEST), tensors)


def _check_plain(folder: Path, settings: dict[str, Any]) -> None:
    parameters = settings.get("target_parameters")
    if isinstance(parameters, list) and all(
        str(one).endswith(EXPERT_WEIGHTS) for one in parameters
    ):
        settings["target_parameters"] = None  # each is a linear layer, as `_targets` writes it
    for name, plain in PLAIN.items():
        if (found := settings.get(name, plain)) != plain and (found or plain):
            raise GermlineError(
                f"space.init_adapter: {folder} has {name}={found!r}, and only plain LoRA adapters "
                f"({name}={plain!r}) can be searched"
            )


def is_adapter(folder: Path) -> bool:
    """Tell whether a folder holds a PEFT adapter."""
    return (folder / CONFIG).is_file()


def write_adapter(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    layers: Sequence[TensorInfo],
    *,
    scale: float,
    base: "BaseModel",
) -> None:
    """Write an adapter as a folder that plain `peft` loads: the same tokens in fp32.

    Its A and B, by canonical name, add scale * B A to layers of the base model.
    """
    rank = len(tensors[layers[0].adapter_names[0]])
    alpha = scale * rank
    settings = {
        **WRITTEN,
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.source,
        "r": rank,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": 0.0,
        "fan_in_fan_out": all(layer.transposed for layer in layers),
        "inference_mode": True,
        **_targets(layers, base),
    }
    folder.mkdir(parents=True, exist_ok=True)
    stored = {PREFIX + name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    written = save(stored, metadata={"format": "pt", DIGEST: base.digest()})
    (folder / TENSORS).write_bytes(_in_order(written))
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")


def _in_order(file: bytes) -> bytes:
    """Sort the metadata of a safetensors file, which the library writes in random order.

    The file is the size of the header in 8 bytes, the header as padded JSON, and the tensors.
    """
    end = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(file[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + file[end:]


def _takes_for_experts(names: Sequence[str], source: str) -> bool:
    """Tell whether peft takes modules with `EXPERT_NAMES` for experts, as the family has some.

    Raises:
        GermlineError: it would give a module another name, which the model does not have.
    """
    from transformers import PreTrainedConfig  # slow, and the toy model needs none of it
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    try:
        # The model is loaded, so its files are here: nothing asks the hub.
        config, _ = PreTrainedConfig.get_config_dict(source, local_files_only=True)
    except OSError:
        return False
    family = str(config.get("model_type"))
    conversions = get_checkpoint_conversion_mapping(family) or []
    renamings = [one for one in conversions if isinstance(one, WeightRenaming)]
    for name in names:
        if (read := rename_source_key(f"{name}.", renamings, [])[0]) != f"{name}.":
            raise GermlineError(
                f"export: peft would read {name} as {read[:-1]} in models of the family {family}, "
                "and load it wrongly: export the merged model"
            )
    return any("experts" in str(one.source_patterns) for one in conversions)


def _targets(layers: Sequence[TensorInfo], base: "BaseModel") -> dict[str, Any]:
    """Name the adapted modules: by last names, as servers expect, or else by full names.

    In families with experts, peft takes some last names for those of experts, as checkpoints of
    transformers 4 had them; it takes the same layers where their weights are named as parameters.
    """
    named = [one for one in layers if _module(one).endswith(EXPERT_NAMES)]
    names = [*map(_module, layers)]
    mistaken = named if named and _takes_for_experts(names, base.source) else []
    modules = [layer for layer in layers if layer not in mistaken]
    return {
        **_target_modules(modules, base.tensors),
        **({"target_parameters": sorted(one.name for one in mistaken)} if mistaken else {}),
    }


def _target_modules(layers: Sequence[TensorInfo], tensors: Sequence[TensorInfo]) -> dict[str, Any]:
    last = {_module(layer).rpartition(".")[2] for layer in layers}
    blocks = {layer.layer for layer in layers}
    adapted = {layer.name for layer in layers}
    alike = {tensor for tensor in tensors if _module(tensor).rpartition(".")[2] in last}
    inside = {name for one in tensors for name in one.name.split(".")[:-2]}  # of other modules
    same_blocks = {one.name for one in alike if one.layer in blocks or one.kind == "non_text"}
    if inside & last or same_blocks != adapted:
        return {"target_modules": sorted(map(_module, layers)), "layers_to_transform": None}
    everywhere = {one.name for one in alike} == adapted
    return {
        "target_modules": sorted(last),
        "layers_to_transform": None if everywhere else sorted(block or 0 for block in blocks),
    }


def _module(tensor: TensorInfo) -> str:
    return tensor.name.removesuffix(".weight")


def _last_name(source: str) -> str:
    """Return the last part of a model's name, as folders are moved and hubs have mirrors."""
    return PurePosixPath(source).name.lower()
