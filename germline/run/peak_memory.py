"""Peak memory of this process."""

import re
import resource
import sys
from pathlib import Path


def peak_memory_mb() -> dict[str, float]:
    """Return the peak memory since the process began, in MB of 10^6 bytes.

    `host` is resident memory, including the loading of the model. `device` is the memory that
    torch allocated on the current accelerator; the key is missing if nothing was allocated. Other
    processes (graders, further engines) are not counted.
    """
    import torch

    peaks = {"host": _host_bytes() / 1e6}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        peaks["device"] = torch.cuda.max_memory_allocated() / 1e6
    return peaks


def _host_bytes() -> int:
    # On Linux a new program inherits getrusage's peak from its parent; VmHWM is its own peak.
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        if found := re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE):
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
