"""When a run writes snapshots, and how many it keeps, within a budget of disk space and time.

A snapshot only saves replaying the journal, so the time at which it is written changes no digest. A
snapshot is due every `record.snapshot_every` generations, which limits the generations that have to
be replayed, and after the last generation. A large snapshot is delayed while writing it would take
more than `SHARE` of the time since the previous one. As many are kept as fit `record.snapshot_gb`,
possibly none.
"""

import time
from collections.abc import Callable

from germline.config import Config
from germline.optimizers import make_optimizer

SHARE = 0.05
"""Largest share of a run's time that writing snapshots may take."""

SHORT_S = 3.0
"""Snapshots that are written faster than this are never delayed, in seconds."""


def snapshots_to_keep(config: Config, dimension: int) -> int:
    """Return how many snapshots a run keeps: 0 if not even one fits `record.snapshot_gb`.

    Args:
        config: config of the run.
        dimension: number of searched numbers; each takes 4 bytes plus the optimizer's state.
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
        every: smallest number of generations between two snapshots.
        keep: number of snapshots to keep; 0 writes none.
        save: writes a snapshot after a generation and drops all but the newest `keep`.
        clock: returns seconds since any fixed time.
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
        """Return whether a snapshot is due after `done` generations."""
        if done % self._every:
            return False
        return self._cost_s < SHORT_S or self._cost_s <= SHARE * (self._clock() - self._written)

    def write(self, generation: int) -> None:
        """Write a snapshot after a generation, unless `keep` is 0."""
        if not self._keep:
            return
        begun = self._clock()
        self._save(generation, self._keep)
        self._written = self._clock()
        self._cost_s = self._written - begun
