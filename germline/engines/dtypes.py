"""The dtypes of models: that of their files, and that of serving.

Weights are loaded in the dtype of their files, so that no fp32 copy of a bf16 model is made. Only
parameters are loaded in that dtype. Buffers, such as the scale of Gemma's embeddings, are
computed by transformers in the dtype in which a model is created: fp32, because rounded buffers
would change the results of an engine that serves in fp32.

Limits: files that mix dtypes, and formats other than safetensors, are loaded in fp32. Weights that
are served in their stored dtype stay mapped from their files, which processes on one machine share:
while such a file is in use, replace it by renaming another file, never by writing into it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from germline.types import GermlineError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@contextmanager
def parameter_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Create models with parameters in a dtype and buffers in fp32 during a `with` block.

    transformers creates a model on the meta device, and gives weights the dtype they have there.
    """

    def converted(
        _module: nn.Module, _name: str, parameter: nn.Parameter | None
    ) -> nn.Parameter | None:
        if parameter is None or not parameter.is_meta or parameter.dtype != torch.float32:
            return None
        return nn.Parameter(parameter.detach().to(dtype), requires_grad=parameter.requires_grad)

    # Typed as if a hook always returned a parameter; None keeps the given one.
    handle = register_module_parameter_registration_hook(converted)  # type: ignore[arg-type]
    try:
        yield
    finally:
        handle.remove()


def serving_dtype(name: str, stored: torch.dtype, *, on_gpu: bool) -> torch.dtype:
    """Return the dtype of `engine.dtype`: `auto` is the checkpoint's on a GPU, fp32 on a CPU."""
    if name != "auto":
        return DTYPES[name]
    is_emulated = on_gpu and stored == torch.bfloat16 and not has_bfloat16()
    if is_emulated or (on_gpu and stored not in DTYPES.values()):
        found = str(stored).removeprefix("torch.")
        raise GermlineError(
            f"engine.dtype=auto is {found}, the dtype in config.json of the model, which this GPU "
            "cannot serve, or only emulates: set engine.dtype=float16 or engine.dtype=float32"
        )
    return stored if on_gpu else torch.float32


def multiplies_bfloat16() -> bool:
    """Tell whether this processor has instructions for products in bfloat16: AVX512-BF16 or AMX.

    Without them, oneDNN converts to fp32 and back, which is slower than fp32.
    """
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in tests)


def has_bfloat16(device: torch.device | None = None) -> bool:
    """Tell whether a GPU calculates in bfloat16, as since Ampere; PyTorch emulates it on others."""
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return True
    return torch.cuda.get_device_capability(device) >= (8, 0)
