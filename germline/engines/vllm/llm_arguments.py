"""The arguments vLLM is started with, from the engine's section, the model and the space."""

import os
from typing import Any

import torch

from germline.config import Vllm
from germline.engines.master_weights import Masters

EXTENSION = "germline.engines.vllm.worker_extension.GermlineWorkerExtension"
"""The class that vLLM adds to its workers; vLLM imports it by this name."""

ADAPTER_PATH = "germline:"
"""Prefix of the `lora_path` of adapters that the worker extension draws; the name follows."""

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values of max_lora_rank that vLLM accepts."""

MAX_AUTO_ADAPTERS = 64
ADAPTER_MEMORY_FRACTION = 0.1
CPU_KV_CACHE_GB = 1.0


def llm_arguments(section: Vllm, masters: Masters, dtype: torch.dtype) -> dict[str, Any]:
    """Return the arguments of `vllm.LLM`; `engine.options` come last."""
    on_gpu = torch.cuda.is_available()
    arguments: dict[str, Any] = {
        "model": masters.base.source,
        "dtype": str(dtype).removeprefix("torch."),
        "tensor_parallel_size": section.tensor_parallel,
        "worker_extension_cls": EXTENSION,
        "enable_prefix_caching": True,
        "use_tqdm_on_load": False,  # the terminal shows the live view
        # On a CPU compilation takes minutes, and vLLM does not compile models with adapters.
        "enforce_eager": not on_gpu,
    }
    if section.gpu_memory_utilization is not None:
        arguments["gpu_memory_utilization"] = section.gpu_memory_utilization
    cache_gb = section.kv_cache_gb or (None if on_gpu else CPU_KV_CACHE_GB)
    if cache_gb is not None:
        arguments["kv_cache_memory_bytes"] = int(cache_gb * 1e9)
    if masters.has_adapter_members:
        arguments |= _adapter_arguments(section, masters, dtype)
    return arguments | section.options


def _adapter_arguments(section: Vllm, masters: Masters, dtype: torch.dtype) -> dict[str, Any]:
    rank = max_lora_rank(masters, section.adapter_rank)
    slots = section.adapters
    if slots == "auto":
        memory = ADAPTER_MEMORY_FRACTION * _memory(section)
        slots = int(memory / adapter_slot_bytes(masters, rank, dtype))
        slots = max(1, min(MAX_AUTO_ADAPTERS, slots))
    return {
        "enable_lora": True,
        "max_loras": slots,
        "max_cpu_loras": slots,
        "max_lora_rank": rank,
    }


def max_lora_rank(masters: Masters, adapter_rank: int | None) -> int:
    """Return the max_lora_rank for adapters of a space.

    Args:
        masters: whose space has members that are adapters.
        adapter_rank: `engine.adapter_rank`; None: the smallest value that is enough.
    """
    rank = (masters.space and masters.space.adapter_rank) or 0
    return adapter_rank or next((value for value in RANKS if value >= rank), rank)


def adapter_slot_bytes(masters: Masters, rank: int, dtype: torch.dtype) -> int:
    """Return the memory of one adapter slot, summed over all layers."""
    return (
        sum(sum(layer.out_in_features) for layer in masters.adapter_layers) * rank * dtype.itemsize
    )


def _memory(section: Vllm) -> float:
    """Return the memory of all GPUs the model is served on, or of this machine, in bytes."""
    if torch.cuda.is_available():
        return section.tensor_parallel * torch.cuda.get_device_properties(0).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
