"""How much memory this process has needed so far, at its peak."""

import re
import resource
import sys
from pathlib import Path


def peak_memory_mb() -> dict[str, float]:
    """Return the most memory held at once since the process began, in MB of 10^6 bytes.

    `host` is resident memory, loading the model included. `device` is what torch's allocator handed
    out on the current accelerator; it is left out where nothing was put on one. Other processes
    (graders, further engines) are not counted.
    """
    import torch

    peaks = {"host": _host_bytes() / 1e6}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        peaks["device"] = torch.cuda.max_memory_allocated() / 1e6
    return peaks


def _host_bytes() -> int:
    # Linux hands getrusage's peak down to a program that another one starts; VmHWM is our own.
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        if found := re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE):
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
