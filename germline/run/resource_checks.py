"""Refuse, before anything is started or loaded, what this machine cannot hold or run.

`check_limits` and `check_graders` compare settings with the machine: processes, threads, members
and time limits. `check_memory` and `check_disk` compare the weights and snapshots of a model with
memory and disk. Only what is certain is refused; how much a generation needs on top is an estimate,
which `germline train --dry-run` prints.

The option `--force`, or the environment variable GERMLINE_FORCE, turns a refusal into a warning,
for a machine that can do more than it seems, such as one with swap. It does not lift the limits of
the operating system: the longest wait of a system call, and the open files of a process.
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
from typing import TYPE_CHECKING

from pydantic import BaseModel

from germline.checkpoint import list_snapshots
from germline.config import Config, Ray, Toy
from germline.estimates.machine import available_bytes, total_bytes, usable_cores
from germline.run.snapshot_policy import snapshot_size, snapshots_to_keep
from germline.types import GermlineError

if TYPE_CHECKING:
    from germline.estimates.memory import Place
    from germline.estimates.model_shape import ModelShape
    from germline.estimates.workload import Workload

log = logging.getLogger(__name__)

GIGABYTE = 1e9

FORCE_VARIABLE = "GERMLINE_FORCE"
"""Environment variable that turns refusals into warnings; processes of engines inherit it."""

MEMORY_SHARE = 0.8
"""Share of the available memory that engines or rollouts may take; other programs need the rest."""

ENGINE_PROCESS_BYTES, TOY_PROCESS_BYTES = 346e6, 196e6
"""Memory of an engine process with nano, and with the toy model, in a generation; shared pages are
left out. Measured on Linux."""

GRADER_PROCESS_BYTES = 23e6
"""Memory of a grader process whose grader imports nothing large: measured on Linux."""

GRADER_PROCESS_FILES = 4
"""Files that this process holds open for each grader process."""

SPARE_FILES = 256
"""Files that this process may open for everything else."""

MEMBER_BYTES = 92
"""Memory of a member in a population: measured."""

ROLLOUT_BYTES = 1080
"""Peak memory of a rollout of one token with its grade: measured; longer rollouts take more."""

SCORE_BYTES = 32
"""Memory of the log-probability of a token: a float and its place in a list."""

MOST_PER_CORE = 16
"""Grader processes and threads of an engine for each core, above `MOST_ON_FEW_CORES`."""

MOST_ON_FEW_CORES = 256
"""Number that is allowed on any machine: a resumed run keeps the threads it began with."""

MOST_ADDRESS_SPACE = 16
"""A memory limit above this multiple of the machine's memory has no effect."""

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


def _refuse(message: str) -> None:
    """Refuse a setting, or warn about it if that was asked for.

    Raises:
        GermlineError: the message, unless the environment variable is set.
    """
    if os.environ.get(FORCE_VARIABLE, "0") in ("", "0"):
        raise GermlineError(f"{message}; --force or {FORCE_VARIABLE}=1 tries it nevertheless")
    log.warning("%s; tried nevertheless (--force or %s)", message, FORCE_VARIABLE)


def check_limits(config: Config, examples: int) -> None:
    """Refuse engines, threads, members and time limits that this machine cannot run.

    Args:
        config: of the run.
        examples: how many training examples the task has.

    Raises:
        GermlineError: naming the setting, its value and what would fit.
    """
    _check_timeouts(config)
    check_threads(config)
    _check_engines(config)
    _check_population(config, examples)


def check_graders(config: Config) -> None:
    """Refuse grader processes and limits of graders that this machine cannot run.

    Raises:
        GermlineError: naming the setting, its value and what would fit.
    """
    _check_timeouts(config)
    workers, files = config.graders.workers, _open_files()
    most_open = (files - SPARE_FILES) / GRADER_PROCESS_FILES
    most = min(_most_per_machine(), available_bytes() / GRADER_PROCESS_BYTES, most_open)
    if workers > max(1, most):
        message = (
            f"graders.workers={workers} is too many for this machine, which has "
            f"{usable_cores()} cores, {available_bytes() / GIGABYTE:.1f} GB of memory available "
            f"and {files:g} files per process: set graders.workers={usable_cores()}, one for each "
            f"core, or at most {max(1, math.floor(most))}"
        )
        if workers > max(1, most_open):
            raise GermlineError(message)
        _refuse(message)
    limit, default = config.graders.memory_gb, _default(config.graders, "memory_gb")
    most = MOST_ADDRESS_SPACE * total_bytes() / GIGABYTE
    if limit is not None and limit > max(most, default):
        _refuse(
            f"graders.memory_gb={limit:g} limits nothing on a machine with "
            f"{total_bytes() / GIGABYTE:.1f} GB of memory: set graders.memory_gb={default:g}, "
            f"the default, or null for no limit"
        )


def check_threads(config: Config) -> None:
    """Refuse more threads of an engine than this machine can start.

    Raises:
        GermlineError: naming the setting, its value and what would fit.
    """
    threads = getattr(config.engine, "threads", None)
    if isinstance(threads, int) and threads > _most_per_machine():
        _refuse(
            f"engine.threads={threads} is too many for the {usable_cores()} cores of this machine: "
            f"set engine.threads={usable_cores()}, or at most {_most_per_machine()}"
        )


def _check_engines(config: Config) -> None:
    """Refuse more engine processes of this machine than its memory holds without any model."""
    fleet = config.fleet
    if fleet.engines == 1 or (isinstance(fleet, Ray) and fleet.address is not None):
        return
    each = TOY_PROCESS_BYTES if isinstance(config.engine, Toy) else ENGINE_PROCESS_BYTES
    available = available_bytes()
    if fleet.engines * each > MEMORY_SHARE * available:
        _refuse(
            f"fleet.engines={fleet.engines} engine processes need at least "
            f"{fleet.engines * each / GIGABYTE:.1f} GB of memory besides a model, and "
            f"{available / GIGABYTE:.1f} GB are available: set fleet.engines="
            f"{max(1, int(MEMORY_SHARE * available / each))} or fewer (one for each GPU, or for "
            f"each of the {usable_cores()} cores, is usually enough)"
        )


def _check_population(config: Config, examples: int) -> None:
    """Refuse a generation whose rollouts do not fit the memory of this process."""
    population, batch = config.strategy.population, min(config.batch_size, examples)
    if population is None:
        return
    method, available = config.method, available_bytes()
    rollouts = method.generated_rows(population) * batch
    scores = population * method.scored_rows(batch) * (config.task.max_new_tokens or 1)
    needed = population * MEMBER_BYTES + rollouts * ROLLOUT_BYTES + scores * SCORE_BYTES
    if needed > MEMORY_SHARE * available:
        fits = _even(MEMORY_SHARE * available / (needed / population))
        remedy = (
            f"set strategy.population={fits} or less, or a smaller batch_size"
            if method.members_generate
            else "set a smaller strategy.population, method.rows_per_member or batch_size"
        )
        _refuse(
            f"strategy.population={population} with {batch} examples each (batch_size) makes "
            f"{rollouts} rollouts in a generation, which need at least "
            f"{needed / GIGABYTE:.1f} GB of memory, and {available / GIGABYTE:.1f} GB "
            f"are available: {remedy}"
        )


def _check_timeouts(config: Config) -> None:
    """Refuse time limits that no system call takes: each setting named `timeout_s`."""
    for section, values in (*config, *config.scorers.items()):
        for name, value in values if isinstance(values, BaseModel) else ():
            if not name.endswith("timeout_s") or value is None or value <= LONGEST_TIMEOUT_S:
                continue
            raise GermlineError(
                f"{section}.{name}={value:g} is longer than {LONGEST_TIMEOUT_S:g} s (11 days), the "
                f"longest wait that is supported: set {section}.{name}="
                f"{_default(values, name):g}, the default, or at most {LONGEST_TIMEOUT_S:g}"
            )


def _most_per_machine() -> int:
    return max(MOST_ON_FEW_CORES, MOST_PER_CORE * usable_cores())


def _even(number: float) -> int:
    """Return the largest even number of members up to a number: pairs need an even population."""
    return max(2, int(number) // 2 * 2)


def _default(section: BaseModel, name: str) -> float:
    return float(type(section).model_fields[name].default)


def _open_files() -> float:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if limit == resource.RLIM_INFINITY else float(limit)


def check_memory(config: Config, *, searched: bool = True, engines: int = 1) -> None:
    """Refuse weights that do not fit the memory of the device or the host.

    Args:
        config: of the run.
        searched: whether masters are held in addition to the serving copy.
        engines: that will share the memory of this host.

    Raises:
        GermlineError: naming what is needed, what is available and what would fit.
    """
    if config.engine.has_own_model or config.model == "nano":
        return
    from germline.estimates.estimate import LESS_MEMORY, Estimate
    from germline.estimates.machine import machine_here
    from germline.estimates.memory import memory_parts
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
    parts = tuple(
        replace(part, bytes=part.bytes * _copies(part.name, part.place, work, shape, engines))
        for part in memory_parts(config, shape, work)
        if part.name in CERTAIN
    )
    found = Estimate(work, parts, machine)
    place = found.lacking
    if place is None:
        return
    held = ", ".join(
        f"{part.name} {part.bytes / GIGABYTE:.1f}"
        for part in parts
        if part.bytes and (part.place == place or not machine.on_gpu)
    )
    _refuse(
        f"model={config.model} does not fit: {found.needed(place) / GIGABYTE:.1f} GB of {place} "
        f"memory are needed before the first text ({held}), and "
        f"{found.available(place) / GIGABYTE:.1f} GB are available; less is needed by {LESS_MEMORY}"
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
        return  # loading the model or the space raises the error
    size, kept = snapshot_size(config, dimension), snapshots_to_keep(config, dimension)
    free = _free_disk(folder) + sum(
        snapshot.stat().st_size for snapshot in list_snapshots(folder / "snapshots")
    )
    if not kept or size * (kept + 1) <= free:
        return
    _refuse(
        f"record.keep_snapshots={config.record.keep_snapshots}: {kept} snapshots of "
        f"{size / GIGABYTE:.1f} GB and the next one need {size * (kept + 1) / GIGABYTE:.1f} GB, "
        f"and the disk of {folder} has {free / GIGABYTE:.1f} GB free: "
        f"{_smaller(config, size, free)}"
    )


def _smaller(config: Config, size: int, free: float) -> str:
    fewer = int(free / size) - 1
    if fewer >= 1:
        return f"set record.keep_snapshots={fewer}, or give --out on another disk"
    if not config.method.replayable:
        return (
            "give --out on another disk; a run of "
            f"method={config.method.kind} needs one to be resumed"
        )
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
