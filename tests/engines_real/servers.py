"""vLLM's OpenAI server, started with the command that germline prints for users."""

import os
import shlex
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from germline.engines.master_weights import Masters
from germline.engines.vllm.llm_arguments import serve_command
from germline.run.build_parts import make_engine
from tests.engines_real.program import config_of

START_S = 600


@contextmanager
def vllm_server(python: str, root: Path, log: Path) -> Iterator[str]:
    """Serve the nano model, with adapters of the rank of all spaces; yield the URL."""
    with vllm_process(python, root, log) as (url, _server):
        yield url


@contextmanager
def vllm_process(
    python: str, root: Path, log: Path
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Do the same as `vllm_server`; yield the URL and the process, which a test may kill."""
    masters = make_engine(config_of("inprocess", "lora")).weights
    assert isinstance(masters, Masters)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = serve_command(masters, torch.float32, url)
    with log.open("wb") as output:
        server = subprocess.Popen(
            ["env", *shlex.split(command.replace("python ", f"{python} ", 1))],
            env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(f"{url}/health", server, log)
        yield url, server
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            kill(server)


def kill(server: subprocess.Popen[bytes]) -> None:
    """End a server and the processes of its engine at once."""
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    began = time.monotonic()
    while time.monotonic() - began < START_S and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
        else:
            return
    raise AssertionError(f"the server does not answer:\n{log.read_text()[-6000:]}")
