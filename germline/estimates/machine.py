"""The memory and cores of this machine, or of the container in which this process runs."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from germline.config import Config, InProcess
from germline.types import GermlineError

if TYPE_CHECKING:
    from germline.estimates.sizes import ModelShape

CGROUPS = Path("/sys/fs/cgroup")
"""Where Linux shows the limits of containers (control groups)."""

CGROUP_FILES = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of versions 2 and 1: the folder, the files with the limit and the use, and a name in memory.stat:
the cache of files, which the system frees when a program needs the memory."""

BFLOAT16_FROM = 100e6
"""Weights from which `engine.dtype=auto` is bfloat16 on a CPU that multiplies it; a generation of a
smaller model takes seconds in fp32."""


@dataclass(frozen=True)
class Machine:
    """The free memory of one device, unless it is a CPU, and of its host."""

    name: str
    on_gpu: bool
    device_bytes: float
    host_bytes: float
    has_bfloat16: bool = True


def machine_here(config: Config) -> Machine:
    """Describe the device on which an engine of a config runs, and this host.

    A device that only the engine can judge, such as that of a server, has infinite memory.
    """
    import torch

    from germline.engines.inprocess import torch_device
    from germline.engines.model_tensors import has_bfloat16

    host = available_bytes()
    if getattr(config.engine, "base_url", None) is not None:
        return Machine("the server", on_gpu=True, device_bytes=math.inf, host_bytes=host)
    named = getattr(config.engine, "device", "auto")
    device = torch_device(named, must_exist=not config.engine.is_served)
    if device.type != "cuda":
        return Machine("this CPU", on_gpu=False, device_bytes=0.0, host_bytes=host)
    if not torch.cuda.is_available():
        return Machine(str(device), on_gpu=True, device_bytes=math.inf, host_bytes=host)
    return Machine(
        name=torch.cuda.get_device_name(device),
        on_gpu=True,
        device_bytes=float(torch.cuda.mem_get_info(device)[0]),
        host_bytes=host,
        has_bfloat16=has_bfloat16(device),
    )


def with_dtype(config: Config, shape: "ModelShape | None" = None) -> Config:
    """Return the config with the dtype that is fastest here, where `engine.dtype` is `auto`.

    A run records it, so that it continues in this dtype on another machine. On a GPU, that is the
    dtype of the checkpoint. On a CPU, it is bfloat16 for a large model, if the processor has
    instructions for it; otherwise `auto` stays, which is fp32 there. Gradients by backpropagation
    are too small for bfloat16.
    """
    engine = config.engine
    if not isinstance(engine, InProcess) or engine.dtype != "auto" or config.model == "nano":
        return config
    from germline.engines.inprocess import torch_device
    from germline.engines.model_tensors import multiplies_bfloat16, serving_dtype
    from germline.estimates.sizes import shape_of

    on_gpu = torch_device(engine.device).type == "cuda"
    if not on_gpu and (config.method.backpropagates or not multiplies_bfloat16()):
        return config
    with suppress(GermlineError):  # loading the model raises it, with more about the model
        shape = shape or shape_of(config.model)
        chosen = "auto" if shape.numbers < BFLOAT16_FROM else "bfloat16"
        if on_gpu:
            dtype = serving_dtype("auto", shape.config_dtype, on_gpu=True)
            chosen = str(dtype).removeprefix("torch.")
        changed = engine.model_copy(update={"dtype": chosen})
        return config.model_copy(update={"engine": changed})
    return config


def available_bytes() -> float:
    """Return the memory that programs can still allocate, including swap."""
    free = psutil.virtual_memory().available + psutil.swap_memory().free
    return float(min([free, *(limit - used for limit, used in _container_memory())]))


def total_bytes() -> float:
    """Return the memory of the machine, or the limit of the container if it is less."""
    return float(min([psutil.virtual_memory().total, *(limit for limit, _ in _container_memory())]))


def usable_cores() -> int:
    """Return how many cores this process may use, also in a container."""
    allowed = getattr(os, "sched_getaffinity", None)  # only Linux has it
    cores = len(allowed(0)) if allowed else os.cpu_count() or 1
    try:
        quota, period = (CGROUPS / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))


def _container_memory() -> Iterator[tuple[int, int]]:
    """Yield limit and use of every control group of this process that limits its memory."""
    for version, limit_file, used_file, reclaimable in CGROUP_FILES:
        for folder in _control_groups(version):
            try:
                limit = int((folder / limit_file).read_text(encoding="ascii"))
                used = int((folder / used_file).read_text(encoding="ascii"))
                statistic = (folder / "memory.stat").read_text(encoding="ascii").split()
            except (OSError, ValueError):  # no such group, or "max": without a limit
                continue
            cached = int(statistic[statistic.index(reclaimable) + 1])
            yield limit, min(limit, max(0, used - cached))


def _control_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups of this process; limits of parents apply to it."""
    root = CGROUPS / controller
    yield root
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            own = Path(path.lstrip("/"))
            yield from (root / part for part in (own, *own.parents) if part.parts)
