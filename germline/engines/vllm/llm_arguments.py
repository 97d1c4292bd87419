"""What vLLM is started with: read from the engine's section, the model and what is searched."""

import os
from typing import Any
from urllib.parse import urlsplit

import torch

from germline.config import Vllm
from germline.engines.master_weights import Masters
from germline.engines.pretrained import PretrainedModel
from germline.types import GermlineError

EXTENSION = "germline.engines.vllm.worker_extension.GermlineWorkerExtension"
"""What germline adds to vLLM's workers; vLLM imports it by this name."""

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The room vLLM can make for adapters: max_lora_rank."""

MOST_SLOTS = 64
SHARE_OF_SLOTS = 0.1
CPU_CACHE_GB = 1.0


def llm_arguments(
    section: Vllm, pretrained: PretrainedModel, masters: Masters, dtype: torch.dtype
) -> dict[str, Any]:
    """Return the arguments of `vllm.LLM`; the user's own options come last.

    Raises:
        GermlineError: adapters of this space have no room.
    """
    on_gpu = torch.cuda.is_available()
    settings: dict[str, Any] = {
        "model": pretrained.source,
        "dtype": str(dtype).removeprefix("torch."),
        "tensor_parallel_size": section.tensor_parallel,
        "worker_extension_cls": EXTENSION,
        "enable_prefix_caching": True,
        "use_tqdm_on_load": False,  # the terminal is the live view's
        # Compiling costs minutes on a CPU, and adapters are not compiled there anyway.
        "enforce_eager": not on_gpu,
    }
    if section.gpu_memory_utilization is not None:
        settings["gpu_memory_utilization"] = section.gpu_memory_utilization
    cache_gb = section.kv_cache_gb or (None if on_gpu else CPU_CACHE_GB)
    if cache_gb is not None:
        settings["kv_cache_memory_bytes"] = int(cache_gb * 1e9)
    if masters.has_adapter_members:
        settings |= _adapter_settings(section, masters, dtype)
    return settings | section.options


def _adapter_settings(section: Vllm, masters: Masters, dtype: torch.dtype) -> dict[str, Any]:
    rank = max_lora_rank(masters, section.adapter_rank)
    slots = section.adapters
    if slots == "auto":
        room = SHARE_OF_SLOTS * _memory(section) / adapter_slot_bytes(masters, rank, dtype)
        slots = max(1, min(MOST_SLOTS, int(room)))
    return {
        "enable_lora": True,
        "max_loras": slots,
        "max_cpu_loras": slots,
        "max_lora_rank": rank,
    }


def max_lora_rank(masters: Masters, asked: int | None) -> int:
    """Return the max_lora_rank for adapters of a space.

    Raises:
        GermlineError: vLLM makes no such room, or it is less than they need.
    """
    rank = (masters.space and masters.space.adapter_rank) or 0
    if rank > RANKS[-1]:
        raise GermlineError(
            f"space.rank={rank} is above {RANKS[-1]}, the largest adapter vLLM serves: use "
            f"{RANKS[-1]} or less, or engine.kind=inprocess"
        )
    listed = ", ".join(map(str, RANKS))
    if asked is not None and asked not in RANKS:
        raise GermlineError(
            f"engine.adapter_rank={asked} is not in vLLM's list: use one of {listed}"
        )
    if asked is not None and asked < rank:
        raise GermlineError(
            f"engine.adapter_rank={asked} leaves no room for space.rank={rank}: drop it, or use "
            f"{min(one for one in RANKS if one >= rank)} or more"
        )
    return asked or min(one for one in RANKS if one >= rank)


def adapter_slot_bytes(masters: Masters, rank: int, dtype: torch.dtype) -> int:
    """Return the memory one adapter's place needs, in all layers together."""
    return (
        sum(sum(layer.out_in_features) for layer in masters.adapter_layers) * rank * dtype.itemsize
    )


def _memory(section: Vllm) -> float:
    """Return the bytes a model is served in, on all its GPUs."""
    if torch.cuda.is_available():
        return section.tensor_parallel * torch.cuda.get_device_properties(0).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def serve_command(model: str, masters: Masters, dtype: torch.dtype, url: str) -> str:
    """Return the command that starts a server for such masters at a URL, as a shell reads it."""
    port = urlsplit(url).port or 80
    words = [
        "VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=True",
        f"python -m vllm.entrypoints.openai.api_server --host 127.0.0.1 --port {port}",
        f"--model {model} --dtype {str(dtype).removeprefix('torch.')}",
        f"--worker-extension-cls {EXTENSION}",
    ]
    if masters.has_adapter_members:
        room = max_lora_rank(masters, None)
        words.append(f"--enable-lora --max-loras 32 --max-cpu-loras 64 --max-lora-rank {room}")
    if not torch.cuda.is_available():
        words.append(f"--enforce-eager --kv-cache-memory-bytes {int(CPU_CACHE_GB * 1e9)}")
    return " ".join(words)
