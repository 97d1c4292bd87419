"""A server of the run's own: started on a free port of this machine, waited for, stopped with it.

What the server prints goes to a file in a temporary folder, which is named where something goes
wrong, and deleted where nothing did.
"""

import contextlib
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from germline.config import Sglang
from germline.engines.sglang import watchdog
from germline.types import EngineLost, GermlineError

log = logging.getLogger(__name__)

SLOTS = 16
"""Adapters in one batch of a launched server, unless `engine.adapters` says otherwise."""
ON_CPU = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--lora-backend", "torch_native", "--disable-overlap-schedule", "--sleep-on-idle"),
    *("--mem-fraction-static", "0.3", "--max-total-tokens", "32768"),
)
"""What the server cannot choose well by itself on a CPU: its kernels, and its share of memory."""
LAST_LINES = 12
SAY_EVERY_S = 30.0
INSTALL = "pip install sglang (in an environment of its own: it pins what it needs)"


class LaunchedServer:
    """A server process.

    Args:
        command: what is run; it must listen at `url`.
        environment: variables on top of this process's own.
        url: where it will listen.
        name: what it calls its model, so that it is not taken for another at the same port.

    Attributes:
        log_file: what it prints.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], url: str, name: str
    ) -> None:
        self.url = url
        self.name = name
        folder = Path(tempfile.mkdtemp(prefix="germline-sglang-"))
        self.log_file = folder / "server.log"
        self._is_ready = False
        with self.log_file.open("wb") as output:
            # A session of its own: Ctrl-C is the run's to handle.
            self._guard = subprocess.Popen(
                [sys.executable, "-I", watchdog.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
                start_new_session=True,
            )

    def wait(self, is_well: Callable[[], bool], startup_timeout_s: float) -> None:
        """Wait until the server answers, and say now and then that it takes time.

        Raises:
            GermlineError: it ended, or took longer than `engine.startup_timeout_s`.
        """
        started = said = time.monotonic()
        while not is_well():
            if (status := self._guard.poll()) is not None:
                raise GermlineError(self._cannot_start(f"ended with status {status}"))
            now = time.monotonic()
            if now - started > startup_timeout_s:
                found = f"did not answer within engine.startup_timeout_s={startup_timeout_s:g} s"
                raise GermlineError(self._cannot_start(found))
            if now - said >= SAY_EVERY_S:
                said = now
                message = "the SGLang server is starting (%d s; it writes to %s)"
                log.warning(message, now - started, self.log_file)
            time.sleep(0.2)
        self._is_ready = True

    def look(self) -> None:
        """Do nothing while the server runs.

        Raises:
            EngineLost: it has ended.
        """
        if self._is_ready and (status := self._guard.poll()) is not None:
            raise EngineLost(
                f"the SGLang server of this run ended with status {status}; a resumed run starts "
                f"another. {self._last_words()}"
            )

    def stop(self) -> None:
        """End the server and all its processes, and forget what it printed if all went well."""
        ran_until_now = self._guard.poll() is None
        with contextlib.suppress(OSError):
            if self._guard.stdin:
                self._guard.stdin.close()
        try:
            self._guard.wait(2 * watchdog.GRACE_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        if self._is_ready and ran_until_now:
            shutil.rmtree(self.log_file.parent, ignore_errors=True)

    def _cannot_start(self, found: str) -> str:
        words = self._last_words()
        if "No module named" in words and "sglang" in words:
            return (
                f"engine.python: this interpreter has no SGLang: {INSTALL}, and name that one's "
                f"(engine.python=.../bin/python). {words}"
            )
        return f"engine.launch: the SGLang server {found}. {words}"

    def _last_words(self) -> str:
        lines = self.log_file.read_text(errors="replace").strip().splitlines()
        shown = "\n    ".join(["", *(line[:500] for line in lines[-LAST_LINES:])])
        return f"The last it wrote to {self.log_file}:{shown or ' nothing'}"


def launch_server(
    config: Sglang, source: str, dtype: torch.dtype, adapter_flags: Sequence[str]
) -> LaunchedServer:
    """Start a server for a model.

    Args:
        config: of the engine.
        source: the model's folder or hub id.
        dtype: to serve in.
        adapter_flags: what the adapters of the run need; none for a run without.

    Raises:
        GermlineError: there is no such interpreter.
    """
    # As text: of a path that it finds as it stands, `which` returns the path.
    python = shutil.which(str(Path(config.python or sys.executable).expanduser()))
    if python is None:
        raise GermlineError(
            f"engine.python={config.python} is no program here: name the interpreter of the "
            f"environment that has SGLang. To make one: {INSTALL}"
        )
    port, name = _free_port(), f"run-{uuid.uuid4().hex}"
    command = [python, "-m", "sglang.launch_server", "--model-path", source]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", str(dtype).split(".")[1]]
    command += ["--served-model-name", name, "--skip-server-warmup"]
    command += _device_flags(launch_device(config))
    if adapter_flags:
        slots = config.adapters if config.adapters != "auto" else SLOTS
        command += [*adapter_flags, "--max-loras-per-batch", str(slots + 1)]  # the base has one
    # Of a flag that stands twice the last one counts.
    command += config.options
    return LaunchedServer(command, _environment(config), f"http://127.0.0.1:{port}", name)


def launch_device(config: Sglang) -> str:
    """Return where a launched server runs: `cpu`, `cuda` or `cuda:1`."""
    if config.device != "auto":
        return config.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _device_flags(device: str) -> list[str]:
    if device == "cpu":
        return list(ON_CPU)
    kind, _, number = device.partition(":")
    return ["--device", kind, *(["--base-gpu-id", number] if number else [])]


def _environment(config: Sglang) -> dict[str, str]:
    found = {"PYTHONSAFEPATH": "1"}  # what lies about in the working directory is no module
    if launch_device(config) == "cpu":
        found["SGLANG_USE_CPU_ENGINE"] = "1"
    if config.threads is not None:
        found["OMP_NUM_THREADS"] = str(config.threads)
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
