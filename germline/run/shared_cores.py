"""A run says that other processes use the cores on which it computes."""

import logging
import os

import torch

from germline.config import Config, InProcess, Local
from germline.estimates.machine import MachineLoad

log = logging.getLogger(__name__)

LEAST_S = 10.0
"""Seconds of a measurement of the load: the start of a run is not a sample of it."""

ENOUGH_CORES = 0.75
"""Free cores for each thread, below which threads wait for each other most of the time."""


class SharedCores:
    """Tells once that other processes use the cores on which an engine of this process computes."""

    def __init__(self, config: Config) -> None:
        """Begin to measure; nothing is told of an engine elsewhere, on a GPU, or of one thread."""
        local = isinstance(config.fleet, Local) and config.fleet.engines == 1
        on_cpu = isinstance(config.engine, InProcess) and not torch.cuda.is_available()
        waits = local and on_cpu and torch.get_num_threads() > 1
        self._load = MachineLoad() if waits else None

    def tell(self) -> None:
        """Log the load, if it slows the threads and was not logged before."""
        if self._load is None or self._load.seconds < LEAST_S:
            return
        others, threads = self._load.share_of_others(), torch.get_num_threads()
        if (1 - others) * (os.cpu_count() or 1) >= ENOUGH_CORES * threads:
            self._load = MachineLoad()
            return
        self._load = None
        log.warning(
            "other processes (graders among them) use %.0f %% of the cores, so the %d threads of "
            "this run wait for each other and a generation takes longer. A run that is begun with "
            "engine.threads=1 is faster there (docs/results.md, Shared cores); a run that is "
            "resumed keeps its number of threads",
            *(100 * others, threads),
        )
