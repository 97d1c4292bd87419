"""Refuse, before a weight is loaded, a run whose weights or snapshots this machine cannot hold.

Only what is certain is refused: weights, masters and moments above the memory that is available,
and snapshots above the free space of the disk. How much a generation needs on top is an estimate,
which `germline doctor --config` prints.
"""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from germline.checkpoint import list_snapshots
from germline.config import Config, EsSampleGradientDescent
from germline.run.snapshot_policy import snapshot_size, snapshots_to_keep
from germline.types import GermlineError

if TYPE_CHECKING:
    from germline.estimates.memory import Place
    from germline.estimates.model_shape import ModelShape
    from germline.estimates.workload import Workload

GIGABYTE = 1e9

CERTAIN = ("weights", "fp32 masters", "optimizer moments", "stored weights")
"""Parts that every run of a config holds from its first generation to its last."""

GUESSED_TOKENS = 256
"""Of prompts and completions, where only what fits beside the weights is asked for."""


def check_memory(config: Config, *, searched: bool = True, engines: int = 1) -> None:
    """Refuse weights that do not fit the memory of the device or the host.

    Args:
        config: of the run.
        searched: whether masters are held beside the serving copy.
        engines: that will share the memory of this host.

    Raises:
        GermlineError: naming what is needed, what is available and what would fit.
    """
    if config.engine.has_own_model or config.model == "nano":
        return
    from germline.estimates.estimate import Estimate, what_fits
    from germline.estimates.hardware import memory_limits
    from germline.estimates.memory import Part, memory_parts
    from germline.estimates.model_shape import shape_of
    from germline.estimates.seconds import Seconds
    from germline.estimates.workload import TextLengths, workload

    on_gpu, device_bytes, host_bytes = _available(config)
    machine = memory_limits(on_gpu=on_gpu, device_bytes=device_bytes, host_bytes=host_bytes)
    new_tokens = config.task.max_new_tokens or GUESSED_TOKENS
    texts = TextLengths(config.batch_size, GUESSED_TOKENS, 0, new_tokens)
    try:
        shape = shape_of(config.model)
        work = workload(config, shape, texts, on_gpu=on_gpu)
    except GermlineError:
        return  # what is wrong with the model or the space is said by whoever loads it
    if not searched:
        work = replace(work, searched=0, moment_bytes=0)
    parts: list[Part] = [
        replace(one, bytes=one.bytes * _copies(one.name, one.place, work, shape, engines))
        for one in memory_parts(config, shape, work)
        if one.name in CERTAIN
    ]
    found = Estimate(work, tuple(parts), Seconds(0.0, 0.0, 0.0, 0.0, 0.0), 0, 0.0, machine)
    if found.fits:
        return
    place: Place = "device" if found.needed("device") > found.available("device") else "host"
    held = ", ".join(
        f"{one.name} {one.bytes / GIGABYTE:.1f}"
        for one in parts
        if one.bytes and (one.place == place or not on_gpu)
    )
    remedy = " ".join(what_fits(config, shape, texts, machine))
    would = f"what would fit: {remedy}" if remedy else "use a smaller model or a larger machine"
    raise GermlineError(
        f"model={config.model} does not fit: {found.needed(place) / GIGABYTE:.1f} GB of {place} "
        f"memory are needed before the first text ({held}), and "
        f"{found.available(place) / GIGABYTE:.1f} GB are available; {would} "
        "(germline doctor --config shows the parts)"
    )


def _copies(name: str, place: "Place", work: "Workload", shape: "ModelShape", engines: int) -> int:
    """Return how many copies of a part several engines of this host hold in one memory.

    Weights that are served as they are stored are mapped from their files, which processes share;
    engines on GPUs are taken to have one each.
    """
    if work.on_gpu and place == "device":
        return 1
    is_mapped = name == "stored weights" or work.dtype == shape.stored_dtype
    return 1 if is_mapped and name in ("weights", "stored weights") else engines


def check_disk(config: Config, folder: Path) -> None:
    """Refuse snapshots that the disk of a run directory cannot hold.

    The newest is written before the oldest is dropped, so one more than is kept must fit; those
    that are there already count as free.

    Raises:
        GermlineError: naming what is asked for, what is free and what would fit.
    """
    if config.engine.has_own_model or config.model == "nano":
        return
    from germline.estimates.model_shape import shape_of
    from germline.spaces import make_space

    try:
        space = make_space(config.space, config.seed)
        shapes = space.searched_shapes(shape_of(config.model).tensors)
        dimension = sum(math.prod(shape) for shape in shapes)
    except GermlineError:
        return  # what is wrong with the model or the space is said by whoever loads it
    size, kept = snapshot_size(config, dimension), snapshots_to_keep(config, dimension)
    free = _free_disk(folder) + sum(
        one.stat().st_size for one in list_snapshots(folder / "snapshots")
    )
    if not kept or size * (kept + 1) <= free:
        return
    raise GermlineError(
        f"record.keep_snapshots={config.record.keep_snapshots}: {kept} snapshots of "
        f"{size / GIGABYTE:.1f} GB and the next one need {size * (kept + 1) / GIGABYTE:.1f} GB, "
        f"and the disk of {folder} has {free / GIGABYTE:.1f} GB free: "
        f"{_smaller(config, size, free)}"
    )


def _smaller(config: Config, size: int, free: float) -> str:
    fewer = int(free / size) - 1
    if fewer >= 1:
        return f"set record.keep_snapshots={fewer}, or give --out on another disk"
    if isinstance(config.method, EsSampleGradientDescent):
        return "give --out on another disk; a run of method=es_sample_gd needs one to be resumed"
    return (
        "set record.snapshot_gb=0 to write none (the journal alone rebuilds every generation), or "
        "give --out on another disk"
    )


def _free_disk(folder: Path) -> float:
    """Return the free bytes where a folder is, or will be."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return float(shutil.disk_usage(place).free)


def _available(config: Config) -> tuple[bool, float, float]:
    """Return whether the engine is on a GPU, and the bytes available on device and host."""
    import torch

    from germline.estimates.hardware import available_bytes
    from germline.estimates.here import engine_device

    host = available_bytes()
    if getattr(config.engine, "base_url", None) is not None:
        return True, math.inf, host  # the server's memory is elsewhere
    device = engine_device(config)
    if device.type != "cuda":
        return False, host, host
    if not torch.cuda.is_available():
        return True, math.inf, host  # that it is missing is said by the engine
    free, _total = torch.cuda.mem_get_info(device)
    return True, float(free), host
