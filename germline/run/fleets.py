"""How many engines a config asks for, on which devices and how many threads; and what slows them.

The number of engines must change no bit of a run, so it changes neither the cells nor the threads
of an engine: where those make several engines slow, this says so instead of choosing others.
"""

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from germline.config import Config, InProcess, Local, Ray, SepCma
from germline.fleet import LocalFleet
from germline.fleet.crew import Crew, Terms
from germline.fleet.follower import Follower
from germline.fleet.processes import EngineProcess, wait
from germline.fleet.remote import RemoteFleet
from germline.protocols import Engine, Fleet
from germline.rollout import Graders, cells
from germline.strategies import make_strategy
from germline.types import GermlineError

log = logging.getLogger(__name__)


def make_fleet(config: Config, load: Callable[[Config], Engine], graders: Graders) -> Fleet:
    """Load one engine here, several in processes of their own, or as actors of a cluster.

    Args:
        config: of the run.
        load: makes the engine of a config; sent to where the engines are.
        graders: here, for all engines.
    """
    if isinstance(config.fleet, Local) and config.fleet.engines == 1:
        return LocalFleet(load(placed(config, 0)), graders, config.cell)
    load = elsewhere(config, load)
    if isinstance(config.fleet, Ray):
        return _on_ray(config, config.fleet, load, graders)
    processes = [
        EngineProcess(number, partial(load, placed(config, number)), _patience(config))
        for number in range(config.fleet.engines)
    ]
    crew = Crew(processes, wait, _terms(config.fleet))
    return RemoteFleet(crew, graders, config.cell, config.fleet.quorum, followed=followed(config))


def followed(config: Config) -> bool:
    """Whether engines elsewhere draw the members of a search by coordinates themselves.

    Those of `cma` are at most 8 kB, and telling a follower costs more than sending them.
    """
    return isinstance(config.strategy, SepCma) and not config.fleet.by_value


def elsewhere(config: Config, load: Callable[[Config], Engine]) -> Callable[[Config], Engine]:
    """Return what makes an engine elsewhere, given what makes one here; both are picklable."""
    return partial(_follower, load) if followed(config) else load


def _follower(load: Callable[[Config], Engine], config: Config) -> Follower:
    """Load an engine, and begin the search that it follows."""
    engine = load(config)
    begin = partial(
        make_strategy,
        config.strategy,
        run_seed=config.seed,
        generations=config.generations,
        dimension=engine.weights.dimension,
    )
    return Follower(engine, begin)


def _on_ray(
    config: Config, fleet: Ray, load: Callable[[Config], Engine], graders: Graders
) -> Fleet:
    try:
        from germline.fleet import cluster, ray_actors
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise GermlineError(
            "fleet.kind=ray needs the package ray, which is not installed: "
            "pip install 'germline[ray]'"
        ) from error
    with ExitStack() as opened:
        # CPUs are only counted by Ray: here, one for each engine, as for processes.
        joined = cluster.Cluster(fleet.address, max(_cores(), fleet.engines), _patience(config))
        opened.callback(joined.close)
        joined.refuse_too_many(fleet.least or fleet.engines, fleet.resources)
        engine = config.engine
        automatic = isinstance(engine, InProcess) and engine.device == "auto"
        if automatic and "GPU" not in fleet.resources and cluster.has_gpus():
            log.warning("fleet.resources asks for no GPU, so engines use none: try {GPU: 1}")
        actors = [
            ray_actors.RayEngine(number, partial(load, placed(config, number)), fleet.resources)
            for number in range(fleet.engines)
        ]
        crew = Crew(actors, ray_actors.wait, _terms(fleet), lambda: cluster.room(fleet.resources))
        store = ray_actors.ObjectStore()
        moving = RemoteFleet(
            crew, graders, config.cell, fleet.quorum, store, followed=followed(config)
        )
        opened.pop_all()
    return cluster.OnCluster(moving, joined)


def _terms(fleet: Local | Ray) -> Terms:
    patience = Terms(hung_after=fleet.hung_after, hung_after_s=fleet.hung_after_s)
    if isinstance(fleet, Local):
        return patience
    return replace(patience, least=fleet.least, room_s=fleet.room_s)


def _patience(config: Config) -> dict[str, str]:
    """Let threads that wait for each other do so asleep where there are more than cores."""
    return {"OMP_WAIT_POLICY": "PASSIVE"} if _crowded(config) else {}


def placed(config: Config, number: int) -> Config:
    """Say on which device an engine runs, and on as many threads as one engine would here."""
    fleet, engine = config.fleet, config.engine
    if not isinstance(engine, InProcess):
        return config
    changes: dict[str, object] = {}
    if isinstance(fleet, Ray):
        changes["threads"] = threads(config)
    else:
        changes |= _device(fleet, engine, number)
        if fleet.engines > 1:
            changes["threads"] = threads(config)
    return config.model_copy(update={"engine": engine.model_copy(update=changes)})


def _device(fleet: Local, engine: InProcess, number: int) -> dict[str, object]:
    if fleet.devices != "auto":
        return {"device": fleet.devices[number]}
    if fleet.engines > 1 and engine.device == "auto" and (gpus := _gpus()):
        return {"device": f"cuda:{number % gpus}"}
    return {}


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
    if isinstance(config.fleet, Ray) and config.fleet.address is not None:
        return False  # the cores of a cluster are elsewhere
    return not _gpus() and config.fleet.engines * threads(config) > _cores()
