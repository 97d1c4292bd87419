"""Build the fleet of a config: the number of engines, and their devices and threads.

The number of engines must not change the bits of a run, so it changes neither the microbatches nor
the threads of an engine.
"""

import logging
from collections.abc import Callable
from functools import partial

from germline.config import Config, InProcess, Local, Ray
from germline.estimates.machine import usable_cores
from germline.fleet import Fleet, LocalFleet
from germline.fleet.engine_processes import EngineProcess, wait_for_outcome
from germline.fleet.remote_fleet import RemoteFleet
from germline.fleet.worker_pool import WorkerPool
from germline.protocols import Engine, GraderProtocol

log = logging.getLogger(__name__)


def make_fleet(config: Config, load: Callable[[Config], Engine], graders: GraderProtocol) -> Fleet:
    """Load one engine in this process, or several in processes or as actors of a cluster.

    `load` is pickled for engines in other processes.
    """
    if config.fleet.in_process:
        return LocalFleet(load(engine_placement(config, 0)), graders, config.microbatch)
    if isinstance(config.fleet, Ray):
        return _on_ray(config, config.fleet, load, graders)
    processes = [
        EngineProcess(number, partial(load, engine_placement(config, number)))
        for number in range(config.fleet.engines)
    ]
    pool = WorkerPool(processes, wait_for_outcome, job_timeout_s=config.fleet.job_timeout_s)
    return RemoteFleet(pool, graders, config.microbatch, config.fleet.quorum)


def _on_ray(
    config: Config, fleet: Ray, load: Callable[[Config], Engine], graders: GraderProtocol
) -> Fleet:
    from germline.fleet import ray_engines

    # Ray only counts CPUs, so one per engine is requested, as for processes.
    joined = ray_engines.RayCluster(fleet.address, max(usable_cores(), fleet.engines))
    try:
        engine = config.engine
        automatic = isinstance(engine, InProcess) and engine.device == "auto"
        if automatic and "GPU" not in fleet.resources and ray_engines.has_gpus():
            log.warning("fleet.resources asks for no GPU, so engines use none: try {GPU: 1}")
        actors = [
            ray_engines.RayEngine(
                number, partial(load, engine_placement(config, number)), fleet.resources
            )
            for number in range(fleet.engines)
        ]
        pool = WorkerPool(
            actors,
            ray_engines.wait_for_outcome,
            placement_timeout_s=fleet.placement_timeout_s,
            resources_report=lambda: ray_engines.resources_report(fleet.resources),
            job_timeout_s=fleet.job_timeout_s,
        )
        return RemoteFleet(
            pool, graders, config.microbatch, fleet.quorum, joined.close, shares_disk=False
        )
    except BaseException:
        joined.close()
        raise


def engine_placement(config: Config, number: int) -> Config:
    """Return the config of an engine with its device, and the threads of a single engine."""
    import torch

    fleet, engine = config.fleet, config.engine
    if not isinstance(engine, InProcess):
        return config
    changes: dict[str, object] = {}
    if isinstance(fleet, Ray) or fleet.engines > 1:
        changes["threads"] = engine_threads(config)
    several = isinstance(fleet, Local) and fleet.engines > 1
    if several and engine.device == "auto" and (gpus := torch.cuda.device_count()):
        changes["device"] = f"cuda:{number % gpus}"
    return config.model_copy(update={"engine": engine.model_copy(update=changes)})


def engine_threads(config: Config) -> int:
    """Return the CPU threads of every engine."""
    import torch

    chosen = config.engine.threads if isinstance(config.engine, InProcess) else None
    return chosen or torch.get_num_threads()
