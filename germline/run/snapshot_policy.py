"""When a run writes snapshots, and how many it keeps: within a budget of bytes and of time.

A snapshot only saves replaying the journal, so when it is written changes no digest. One is due
every `record.snapshot_every` generations, which bounds what has to be replayed, and after the last
generation. A large one is put off while writing it would cost more than `SHARE` of the time since
the one before, and as many are kept as fit `record.snapshot_gb`, possibly none.
"""

import time
from collections.abc import Callable

from germline.config import Config
from germline.optimizers import make_optimizer

SHARE = 0.05
"""Most of a run's time that writing snapshots may take."""

SHORT_S = 3.0
"""Snapshots that are written faster than this are never put off."""


def snapshots_to_keep(config: Config, dimension: int) -> int:
    """Return how many snapshots a run keeps: 0 if not even one fits `record.snapshot_gb`.

    Args:
        config: of the run.
        dimension: how many numbers are searched: each takes 4 bytes, and those of the optimizer.
    """
    record = config.record
    size = snapshot_size(config, dimension)
    fit = record.keep_snapshots
    if record.snapshot_gb is not None:
        fit = min(fit, int(record.snapshot_gb * 1e9 / size))
    # A run that seeds cannot rebuild needs a snapshot to be resumed.
    return fit if config.method.replayable else max(fit, 1)


def snapshot_size(config: Config, dimension: int) -> int:
    """Return the bytes of one snapshot: fp32 masters and moments of what is searched."""
    return dimension * (4 + make_optimizer(config.optimizer).bytes_per_number)


class SnapshotPolicy:
    """The snapshots of one run.

    Args:
        every: generations from one to the next, at least.
        keep: how many; none is written where this is 0.
        save: writes one after a generation and drops all but the newest `keep`.
        clock: seconds since any fixed moment.
    """

    def __init__(
        self,
        every: int,
        keep: int,
        save: Callable[[int, int], object],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._every = every
        self._keep = keep
        self._save = save
        self._clock = clock
        self._written = clock()
        self._cost_s = 0.0

    def is_due(self, done: int) -> bool:
        """Tell whether to write one after so many generations."""
        if done % self._every:
            return False
        return self._cost_s < SHORT_S or self._cost_s <= SHARE * (self._clock() - self._written)

    def write(self, generation: int) -> None:
        """Write one after a generation, unless none is kept."""
        if not self._keep:
            return
        begun = self._clock()
        self._save(generation, self._keep)
        self._written = self._clock()
        self._cost_s = self._written - begun
