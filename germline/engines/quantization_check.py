"""Refuse models whose weights are integer codes: what is searched are float weights.

Such a model is known by the `quantization_config` of its config.json (bitsandbytes, GPTQ, AWQ, FP8,
compressed-tensors, ...) or, where that is missing, by the types in its files of weights, which
transformers would take for numbers as they are. Both are read before any weight, so the libraries
that unpack such codes are not asked for.
"""

import math
from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open
from transformers import PreTrainedConfig

from germline.types import GermlineError

FLOATS = ("F64", "F32", "F16", "BF16")


def check_not_quantized(source: str, config: PreTrainedConfig) -> None:
    """Stop before the weights of a quantized model are loaded.

    Raises:
        GermlineError: naming the first tensor of codes, where the source is a folder.
    """
    # Undeclared, only weights count: old models keep masks and positions as integers.
    declared = getattr(config, "quantization_config", None)
    codes = next(_codes(Path(source).expanduser(), "" if declared else "weight"), None)
    if not declared and codes is None:
        return
    found = f"its {codes}" if codes else f"says config.json ({_method(declared)})"
    raise GermlineError(
        f"model: {source!r} is quantized, {found}: quantized weights are not supported, as "
        "the space searches float weights; give the float model it was made from"
    )


def _codes(folder: Path, ending: str) -> Iterator[str]:
    """Describe tensors of something else than floats whose names end like this."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in sorted(tensors.keys()):
                about = tensors.get_slice(name)
                dtype, shape = about.get_dtype(), about.get_shape()
                if dtype not in FLOATS and math.prod(shape) > 1 and name.endswith(ending):
                    yield f"{name} is of type {dtype}"


def _method(declared: object) -> str:
    if isinstance(declared, dict):
        return f"quant_method {declared.get('quant_method', 'unknown')}"
    return f"quant_method {getattr(declared, 'quant_method', 'unknown')}"
