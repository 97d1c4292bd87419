"""The heap of this process keeps what generation frees: every step needs it again.

Left alone, glibc gives buffers of some megabytes back to the system when they are freed and asks
for them again a moment later; that the system must clear every page anew takes a tenth of a
generation of a small model (`python -m benchmarks.heap`). See mallopt(3).
"""

import contextlib
import ctypes
import os
import platform

LARGEST = 32 * 2**20
"""Bytes of the largest buffer that is kept, the most that an older glibc takes for an answer."""
KEPT = 2**30
"""Bytes kept at most at the end of the heap."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Let this process keep its freed memory; return whether it does.

    It does not where another C library allocates, or where the user has decided it
    (`MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`, `GLIBC_TUNABLES`).
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _OF_THE_USER):
        return False
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(_MMAP_THRESHOLD, LARGEST) and mallopt(_TRIM_THRESHOLD, KEPT))
    return False
