"""Share of the machine that other programs use during a measurement.

Wall time on a shared machine depends on the other programs. Linux counts the CPU time of all
programs in `/proc/stat`; the CPU time of this process is subtracted from it.
"""

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
IDLE = (3, 4)
"""Columns of the time in which a core is idle or waits for a disk."""
COUNTED = 8
"""Columns up to `steal`; the other columns already contain the time of guests."""


class MachineLoad:
    """Measures from its construction on."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._busy, self._own = _busy_s(), time.process_time()

    @property
    def seconds(self) -> float:
        """Seconds since the construction."""
        return time.perf_counter() - self._begun

    def share_of_others(self) -> float | None:
        """Return the share of all cores that other programs used; None if it is unknown."""
        if self._busy is None or (busy := _busy_s()) is None:
            return None
        others = (busy - self._busy) - (time.process_time() - self._own)
        return max(0.0, others / (self.seconds * (os.cpu_count() or 1)))


def _busy_s() -> float | None:
    """Return the busy seconds of all cores since the machine was started."""
    if not STAT.is_file():
        return None
    counts = [int(one) for one in STAT.read_text().splitlines()[0].split()[1 : COUNTED + 1]]
    busy = sum(count for column, count in enumerate(counts) if column not in IDLE)
    return busy / os.sysconf("SC_CLK_TCK")
