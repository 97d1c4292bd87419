"""Keep freed heap memory in this process, because every decode step allocates it again.

By default glibc returns buffers of some megabytes to the system when they are freed and requests
them again for the next step; clearing their pages takes a tenth of a generation of a small model
(`python -m benchmarks.heap`). See mallopt(3).
"""

import contextlib
import ctypes
import os
import platform

LARGEST = 32 * 2**20
"""Bytes of the largest buffer that is kept: the largest value that an older glibc accepts."""


KEPT = 2**30
"""Most bytes kept at the end of the heap."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Let this process keep its freed memory; return whether the settings were applied.

    They are not applied with another C library, or where the environment sets
    `MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_` or `GLIBC_TUNABLES`.
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _OF_THE_USER):
        return False
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(_MMAP_THRESHOLD, LARGEST) and mallopt(_TRIM_THRESHOLD, KEPT))
    return False
