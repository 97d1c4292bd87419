"""How many engines a config asks for, on which devices and how many threads; and what slows them.

The number of engines must change no bit of a run, so it changes neither the cells nor the threads
of an engine: where those make several engines slow, this says so instead of choosing others.
"""

import logging
import os
from collections.abc import Callable
from functools import partial

from germline.config import Config, InProcess
from germline.fleet import LocalFleet
from germline.fleet.crew import Crew
from germline.fleet.processes import EngineProcess, wait
from germline.fleet.remote import RemoteFleet
from germline.protocols import Engine, Fleet
from germline.rollout import Graders, cells

log = logging.getLogger(__name__)


def make_fleet(config: Config, load: Callable[[Config], Engine], graders: Graders) -> Fleet:
    """Load one engine here, or several in processes of their own.

    Args:
        config: of the run.
        load: makes the engine of a config; sent to the processes.
        graders: here, for all engines.
    """
    if config.fleet.engines == 1:
        return LocalFleet(load(placed(config, 0)), graders, config.cell)
    # Threads that wait for each other do so asleep where there are more of them than cores.
    patience = {"OMP_WAIT_POLICY": "PASSIVE"} if _crowded(config) else {}
    processes = [
        EngineProcess(number, partial(load, placed(config, number)), patience)
        for number in range(config.fleet.engines)
    ]
    return RemoteFleet(Crew(processes, wait), graders, config.cell)


def placed(config: Config, number: int) -> Config:
    """Say on which device an engine runs, and on as many threads as one engine would here."""
    fleet, engine = config.fleet, config.engine
    if not isinstance(engine, InProcess):
        return config
    changes: dict[str, object] = {}
    if fleet.devices != "auto":
        changes["device"] = fleet.devices[number]
    elif fleet.engines > 1 and engine.device == "auto" and (gpus := _gpus()):
        changes["device"] = f"cuda:{number % gpus}"
    if fleet.engines > 1:
        changes["threads"] = threads(config)
    return config.model_copy(update={"engine": engine.model_copy(update=changes)})


def threads(config: Config) -> int:
    """Return the CPU threads of every engine."""
    import torch

    chosen = config.engine.threads if isinstance(config.engine, InProcess) else None
    return chosen or torch.get_num_threads()


def say_what_is_slow(config: Config, examples: int) -> None:
    """Tell what several engines gain nothing from, on so many training examples."""
    engines, population = config.fleet.engines, config.strategy.population
    if engines == 1 or population is None:
        return
    caution = " (it may change the last bits of an evaluation, so choose it when a run begins)"
    if _crowded(config):
        each = max(1, _cores() // engines)
        fewer = f"fleet.engines={_cores()}"
        better = f"engine.threads={each}{caution}" if each < threads(config) else fewer
        log.warning(
            "fleet.engines=%d with %d threads each on %d cores: they wait for each other; try %s",
            *(engines, threads(config), _cores(), better),
        )
    batch = min(config.batch, examples)
    pieces = len(cells(population, batch, config.cell))
    if pieces < engines:
        rows = max(1, population * batch // (2 * engines))
        log.warning(
            "fleet.engines=%d is more than a generation has cells of work (%d); try cell.rows=%d%s",
            *(engines, pieces, rows, caution),
        )


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _cores() -> int:
    allowed = getattr(os, "sched_getaffinity", None)  # what this process may use, where it is known
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def _crowded(config: Config) -> bool:
    if not isinstance(config.engine, InProcess) or config.engine.device not in ("auto", "cpu"):
        return False
    return not _gpus() and config.fleet.engines * threads(config) > _cores()
