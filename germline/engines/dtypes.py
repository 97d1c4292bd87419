"""The dtypes in which models are served, by config name, and which of them a device supports."""

import torch

from germline.types import GermlineError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

BFLOAT16_SINCE = (8, 0)
"""The CUDA compute capability (Ampere) since which GPUs calculate in bfloat16; PyTorch emulates it
on older ones, more slowly than float32."""


def serving_dtype(name: str, stored: torch.dtype, *, on_gpu: bool) -> torch.dtype:
    """Return the dtype of `engine.dtype`: `auto` is the checkpoint's on a GPU, fp32 on a CPU.

    Raises:
        GermlineError: `auto` on a GPU, and the checkpoint's dtype is not in `DTYPES`.
    """
    if name != "auto":
        return DTYPES[name]
    if on_gpu and stored not in DTYPES.values():
        raise GermlineError(
            f"engine.dtype=auto is {_name(stored)}, the dtype in config.json of the model, and "
            f"models are served in {', '.join(DTYPES)}: set engine.dtype to one of these"
        )
    return stored if on_gpu else torch.float32


def check_dtype(asked: str, dtype: torch.dtype, device: torch.device) -> None:
    """Check that a device supports a dtype, by multiplying two small matrices.

    Args:
        asked: the value of `engine.dtype`.
        dtype: its dtype for the model.
        device: of the model.

    Raises:
        GermlineError: names the dtypes that the device supports.
    """
    lacks = _lacks(dtype, device)
    if lacks is None:
        return
    others = [name for name, one in DTYPES.items() if _lacks(one, device) is None]
    remedy = f"set engine.dtype={' or engine.dtype='.join(others)}" if others else "use another"
    found = " (as the model is stored)" if asked == "auto" else ""
    raise GermlineError(
        f"engine.dtype={asked} is {_name(dtype)}{found}, which engine.device={device} lacks "
        f"({lacks}): {remedy}"
    )


def _lacks(dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why a device does not support a dtype; None where it does."""
    if dtype == torch.bfloat16 and device.type == "cuda" and torch.version.hip is None:
        capability = torch.cuda.get_device_capability(device)
        if capability < BFLOAT16_SINCE:
            found, needed = (f"{one[0]}.{one[1]}" for one in (capability, BFLOAT16_SINCE))
            gpu = torch.cuda.get_device_name(device)
            return f"{gpu} has compute capability {found}, bfloat16 needs {needed}"
    try:
        matrix = torch.ones(16, 16, dtype=dtype, device=device)
        (matrix @ matrix).cpu()
    except (RuntimeError, TypeError) as error:
        return str(error).splitlines()[0]
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
