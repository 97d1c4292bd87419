"""A server of the run's own: started on a free port of this machine, waited for, stopped with it.

The server's output goes to a file in a temporary folder. Errors name the file; a server that ran
until it was stopped has its folder deleted.
"""

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from germline.config import Sglang
from germline.engines.sglang import watchdog
from germline.types import EngineLost, GermlineError

log = logging.getLogger(__name__)

DEFAULT_ADAPTERS = 16
"""Default of `engine.adapters` for a launched server: adapters in one batch."""
CPU_FLAGS = (
    *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--lora-backend", "torch_native", "--disable-overlap-schedule", "--sleep-on-idle"),
    *("--mem-fraction-static", "0.3", "--max-total-tokens", "32768"),
)
"""Flags whose defaults do not work on a CPU: kernels, and the share of memory."""
SHOWN_LINES = 12


class LaunchedServer:
    """A server process, whose output goes to `log_file`; the command must start it at `url`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], url: str) -> None:
        self.url = url
        self.log_file = Path(tempfile.mkdtemp(prefix="germline-sglang-")) / "server.log"
        self._is_ready = False
        with self.log_file.open("wb") as output:
            # In a session of its own, so that Ctrl-C reaches the run only.
            self._watchdog = subprocess.Popen(
                [sys.executable, "-I", watchdog.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
                start_new_session=True,
            )

    def wait(self, is_healthy: Callable[[], bool], startup_timeout_s: float) -> None:
        """Wait until the server is healthy."""
        log.warning("the SGLang server is starting; its output is in %s", self.log_file)
        started = time.monotonic()
        while not is_healthy():
            if (status := self._watchdog.poll()) is not None:
                end = f"ended with status {status} (it needs SGLang in engine.python)"
            elif time.monotonic() - started > startup_timeout_s:
                end = f"did not answer within engine.startup_timeout_s={startup_timeout_s:g} s"
            else:
                time.sleep(0.2)
                continue
            raise GermlineError(f"engine.launch: the SGLang server {end}. {self._last_output()}")
        self._is_ready = True

    def check_alive(self) -> None:
        """Check that a server that was healthy once still runs."""
        if self._is_ready and (status := self._watchdog.poll()) is not None:
            raise EngineLost(
                f"the SGLang server of this run ended with status {status}; a resumed run starts "
                f"another. {self._last_output()}"
            )

    def stop(self) -> None:
        """End the server and all its processes; delete its output if it ran until now."""
        ran_until_now = self._watchdog.poll() is None
        try:
            self._watchdog.communicate(timeout=2 * watchdog.GRACE_S)  # closes its standard input
        except subprocess.TimeoutExpired:
            self._watchdog.kill()
            self._watchdog.wait()
        if self._is_ready and ran_until_now:
            shutil.rmtree(self.log_file.parent, ignore_errors=True)

    def _last_output(self) -> str:
        lines = self.log_file.read_text(errors="replace").strip().splitlines()
        shown = "\n    ".join(["", *(line[:500] for line in lines[-SHOWN_LINES:])])
        return f"Its last output in {self.log_file}:{shown or ' nothing'}"


def launch_server(
    section: Sglang, source: str, dtype: torch.dtype, adapter_flags: Sequence[str]
) -> LaunchedServer:
    """Start a server for a model in a folder or of a hub id."""
    # As text: `which` returns a `Path` argument unchanged if it is a program.
    python = shutil.which(str(Path(section.python or sys.executable).expanduser()))
    if python is None:
        raise GermlineError(
            f"engine.python={section.python} is not a program on this machine: name the "
            "interpreter of an environment of its own, in which `pip install sglang` was run"
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kind, _, number = (device := launch_device(section)).partition(":")
    command = [
        *(python, "-m", "sglang.launch_server", "--model-path", source, "--skip-server-warmup"),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", str(dtype).split(".")[1]),
        *("--device", kind, *(["--base-gpu-id", number] if number else [])),
    ]
    environment = {"PYTHONSAFEPATH": "1"}  # files in the working directory are not modules
    if device == "cpu":
        command += CPU_FLAGS
        environment["SGLANG_USE_CPU_ENGINE"] = "1"
    if section.threads is not None:
        environment["OMP_NUM_THREADS"] = str(section.threads)
    if adapter_flags:
        slots = section.adapters if section.adapters != "auto" else DEFAULT_ADAPTERS
        command += [*adapter_flags, "--max-loras-per-batch", str(slots + 1)]  # one is for the base
    # The last of two equal flags wins.
    command += section.options
    return LaunchedServer(command, environment, f"http://127.0.0.1:{port}")


def launch_device(section: Sglang) -> str:
    """Return the device of a launched server: `cpu`, `cuda` or, for example, `cuda:1`."""
    if section.device != "auto":
        return section.device
    return "cuda" if torch.cuda.is_available() else "cpu"
