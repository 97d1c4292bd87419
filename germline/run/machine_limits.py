"""Refuse, before anything is started or loaded, what this machine certainly cannot hold or run.

How much memory a generation needs on top of the weights is an estimate, which
`germline train --dry-run` prints.

`--force`, or the environment variable GERMLINE_FORCE, turns a refusal into a warning, for a machine
that can do more than it seems. It does not lift the limits of the operating system: the longest
wait of a system call, and the open files of a process.
"""

import logging
import math
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel

from germline.checkpoint import list_snapshots
from germline.config import Config, Local, Ray
from germline.estimates.machine import available_bytes, usable_cores
from germline.run.snapshot_policy import snapshot_size, snapshots_to_keep
from germline.types import GermlineError

log = logging.getLogger(__name__)

GIGABYTE = 1e9

FORCE_VARIABLE = "GERMLINE_FORCE"
"""Environment variable that turns refusals into warnings; processes of engines inherit it."""

MEMORY_SHARE = 0.8
"""Share of the available memory that processes or rollouts may take; other programs need the
rest."""

ENGINE_BYTES, TOY_BYTES, GRADER_BYTES, ROLLOUT_BYTES = 346e6, 196e6, 23e6, 1080
"""Memory of an engine process with nano and with the toy model, of a grader process, and of a
rollout of one token: the least, measured on Linux without shared pages."""

GRADER_FILES, SPARE_FILES = 4, 256
"""Files that this process holds open for each grader process, and for everything else."""

MOST_PER_CORE, MOST_ON_FEW_CORES = 16, 256
"""Grader processes and threads of an engine for each core, and the number that is allowed on any
machine: a resumed run keeps the threads it began with."""

LONGEST_TIMEOUT_S = 1e6
"""The longest time limit: system calls that wait overflow above 2.1e6 s."""

CERTAIN = ("weights", "fp32 masters", "optimizer moments", "stored weights")
"""Parts of the memory that a run holds from its first generation to its last."""

GUESSED_TOKENS = 256
"""Assumed tokens of prompts and completions; only memory in addition to the weights uses them."""


@contextmanager
def refusals_as_warnings() -> Iterator[None]:
    """Let the checks of this module warn instead of refusing, in engine processes too."""
    before = os.environ.get(FORCE_VARIABLE)
    os.environ[FORCE_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[FORCE_VARIABLE]
        else:
            os.environ[FORCE_VARIABLE] = before


def _refuse(setting: str, found: str, remedy: str) -> None:
    """Refuse a setting that does not fit this machine, or warn about it if that was asked for.

    Raises:
        GermlineError: unless the environment variable is set.
    """
    message = f"{setting}: {found}; {remedy}"
    if os.environ.get(FORCE_VARIABLE, "0") in ("", "0"):
        raise GermlineError(f"{message}; --force or {FORCE_VARIABLE}=1 tries it nevertheless")
    log.warning("%s; tried nevertheless (--force or %s)", message, FORCE_VARIABLE)


def check_timeouts(config: Config) -> None:
    """Refuse time limits that no system call takes: each setting named `timeout_s`."""
    for section, values in (*config, *config.scorers.items()):
        for name, value in values if isinstance(values, BaseModel) else ():
            if name.endswith("timeout_s") and value is not None and value > LONGEST_TIMEOUT_S:
                raise GermlineError(
                    f"{section}.{name}={value:g} is longer than the longest wait, 11 days: set "
                    f"{section}.{name} to at most {LONGEST_TIMEOUT_S:g}"
                )


def check_graders(config: Config) -> None:
    """Refuse grader processes that this machine cannot run.

    Raises:
        GermlineError: naming the setting and what would fit.
    """
    check_timeouts(config)
    workers, available = config.graders.workers, available_bytes()
    files = (_open_files() - SPARE_FILES) / GRADER_FILES
    if workers > max(1, files):  # --force cannot lift this limit
        raise GermlineError(
            f"graders.workers={workers}: a process may open {_open_files():g} files here; set at "
            f"most graders.workers={max(1, math.floor(files))}"
        )
    most = max(1, math.floor(min(_most_per_machine(), available / GRADER_BYTES)))
    if workers > most:
        _refuse(
            f"graders.workers={workers}",
            f"the machine has {usable_cores()} cores and {available / GIGABYTE:.1f} GB of memory "
            "available",
            f"set graders.workers={usable_cores()}, one for each core, or at most {most}",
        )


def check_threads(config: Config) -> None:
    """Refuse more threads of an engine than this machine can start.

    Raises:
        GermlineError: naming the setting and what would fit.
    """
    threads = getattr(config.engine, "threads", None)
    if isinstance(threads, int) and threads > _most_per_machine():
        _refuse(
            f"engine.threads={threads}",
            f"the machine has {usable_cores()} cores",
            f"set engine.threads={usable_cores()}, or at most {_most_per_machine()}",
        )


def check_engines(config: Config) -> None:
    """Refuse more engine processes of this machine than its memory holds without any model.

    Raises:
        GermlineError: naming the setting and what would fit.
    """
    fleet, available = config.fleet, available_bytes()
    if fleet.engines == 1 or (isinstance(fleet, Ray) and fleet.address is not None):
        return
    each = TOY_BYTES if config.engine.has_own_model else ENGINE_BYTES
    if fleet.engines * each > MEMORY_SHARE * available:
        _refuse(
            f"fleet.engines={fleet.engines}",
            f"the processes need {fleet.engines * each / GIGABYTE:.1f} GB of memory besides a "
            f"model, and {available / GIGABYTE:.1f} GB are available",
            f"set at most fleet.engines={max(1, int(MEMORY_SHARE * available / each))}",
        )


def check_population(config: Config, examples: int) -> None:
    """Refuse a generation whose rollouts do not fit the memory of this process.

    Raises:
        GermlineError: naming the setting and what would fit.
    """
    population, batch = config.strategy.population or 0, min(config.batch_size, examples)
    rollouts = config.method.generated_rows(population) * batch
    needed, available = rollouts * ROLLOUT_BYTES, available_bytes()
    if needed > MEMORY_SHARE * available:
        fits = max(2, int(MEMORY_SHARE * available / needed * population) // 2 * 2)
        _refuse(
            f"strategy.population={population}",
            f"{rollouts} rollouts in a generation need at least {needed / GIGABYTE:.1f} GB of "
            f"memory, and {available / GIGABYTE:.1f} GB are available",
            f"set at most strategy.population={fits}, or a smaller batch_size",
        )


def check_memory(config: Config, *, searched: bool = True, engines: int = 1) -> None:
    """Refuse weights that do not fit the memory of the device or the host.

    Args:
        config: of the run.
        searched: whether masters are held in addition to the serving copy.
        engines: that will share the memory of this host.

    Raises:
        GermlineError: naming what is needed, what is available and what needs less.
    """
    if config.engine.has_own_model or config.model == "nano":
        return
    from germline.estimates.machine import machine_here
    from germline.estimates.memory import LESS_MEMORY, Estimate, memory_parts
    from germline.estimates.model_shape import shape_of
    from germline.estimates.workload import TextLengths, workload

    machine = machine_here(config)
    new_tokens = config.task.max_new_tokens or GUESSED_TOKENS
    texts = TextLengths(config.batch_size, GUESSED_TOKENS, 0, new_tokens)
    try:
        shape = shape_of(config.model)
        work = workload(config, shape, texts, on_gpu=machine.on_gpu)
    except GermlineError:
        return  # loading the model or the space raises the error
    if not searched:
        work = replace(work, searched=0, moment_bytes=0)
    # Weights that are served as they are stored are mapped from their files, which the processes
    # of a host share; engines on GPUs are taken to have a GPU each.
    is_mapped = work.dtype == shape.stored_dtype
    shared = ("weights", "stored weights") if is_mapped else ("stored weights",)
    parts = tuple(
        part
        if part.name in shared or (machine.on_gpu and part.place == "device")
        else replace(part, bytes=part.bytes * engines)
        for part in memory_parts(config, shape, work)
        if part.name in CERTAIN
    )
    found = Estimate(work, parts, machine)
    if (place := found.lacking) is None:
        return
    held = ", ".join(
        f"{part.name} {part.bytes / GIGABYTE:.1f}"
        for part in parts
        if part.bytes and (part.place == place or not machine.on_gpu)
    )
    _refuse(
        f"model={config.model} does not fit",
        f"{found.needed(place) / GIGABYTE:.1f} GB of {place} memory are needed before the first "
        f"text ({held}), and {found.available(place) / GIGABYTE:.1f} GB are available",
        f"less is needed by {LESS_MEMORY}",
    )


def check_fleet_memory(config: Config) -> None:
    """Refuse weights that do not fit this machine once for each engine of the fleet.

    Each engine checks the memory when it loads, but all of them load at the same time.

    Raises:
        GermlineError: naming what is needed, what is available and what needs less.
    """
    if isinstance(config.fleet, Local):
        check_memory(config, engines=config.fleet.engines)


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
    except GermlineError:
        return  # loading the model or the space raises the error
    dimension = sum(math.prod(shape) for shape in shapes)
    size, kept = snapshot_size(config, dimension), snapshots_to_keep(config, dimension)
    there = list_snapshots(folder / "snapshots")
    free = _free_disk(folder) + sum(snapshot.stat().st_size for snapshot in there)
    if not kept or size * (kept + 1) <= free:
        return
    none = "record.snapshot_gb=0 (the journal alone rebuilds every generation), or "
    fewer = f"record.keep_snapshots={int(free / size) - 1}, or " if free >= 2 * size else ""
    _refuse(
        f"record.keep_snapshots={config.record.keep_snapshots}",
        f"{kept} snapshots of {size / GIGABYTE:.1f} GB and the next one need "
        f"{size * (kept + 1) / GIGABYTE:.1f} GB, and the disk of {folder} has "
        f"{free / GIGABYTE:.1f} GB free",
        f"set {fewer or (none if config.method.replayable else '')}--out on another disk",
    )


def _free_disk(folder: Path) -> float:
    """Return the free bytes where a folder is, or will be."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return float(shutil.disk_usage(place).free)


def _most_per_machine() -> int:
    return max(MOST_ON_FEW_CORES, MOST_PER_CORE * usable_cores())


def _open_files() -> float:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if limit == resource.RLIM_INFINITY else float(limit)
