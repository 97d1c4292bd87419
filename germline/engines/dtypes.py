"""The dtypes a model is served in, by the names of the config."""

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def serving_dtype(name: str, stored: torch.dtype, *, on_gpu: bool) -> torch.dtype:
    """Return what `engine.dtype` means: `auto` is the checkpoint's on a GPU, fp32 on a CPU."""
    if name == "auto":
        return stored if on_gpu else torch.float32
    return DTYPES[name]
