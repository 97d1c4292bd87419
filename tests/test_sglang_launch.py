"""Servers that the engine sglang starts: waited for, lost, ended; small programs replace them.

tests/engines_real tests the start and the end of the real server.
"""

import subprocess
import sys
import tempfile

import psutil
import pytest
import torch

from germline.config import load_config
from germline.engines.sglang import server as sglang_server
from germline.engines.sglang import watchdog
from germline.engines.sglang.server import LaunchedServer
from germline.run.build_parts import make_engine
from germline.types import EngineLost, GermlineError
from tests.hang_limit import wait_until
from tests.tiny_engines import folder

FOREVER = "import time; time.sleep(1000)"
PARENT_AND_CHILD = (
    "import subprocess, sys, time, os\n"
    f"child = subprocess.Popen([sys.executable, '-c', {FOREVER!r}])\n"
    "open(sys.argv[1], 'w').write(f'{os.getpid()} {child.pid}')\n"
    "time.sleep(1000)\n"
)


@pytest.fixture(autouse=True)
def _leave_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def started():
    """Start programs in place of servers, and stop those that are left."""
    servers = []

    def start(program, *arguments):
        command = [sys.executable, "-c", program, *map(str, arguments)]
        servers.append(LaunchedServer(command, {}, "http://127.0.0.1:9"))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def runs(process):
    try:
        return psutil.Process(process).status() != "zombie"
    except psutil.NoSuchProcess:
        return False


def processes(file):
    """Return the process ids that PARENT_AND_CHILD wrote into a file."""
    wait_until(lambda: file.exists() and len(file.read_text().split()) == 2)
    return [int(one) for one in file.read_text().split()]


def test_a_server_that_ends_before_it_is_ready_is_an_error_with_its_last_output(started):
    server = started("print('no room'); raise SystemExit(3)")
    with pytest.raises(GermlineError, match=r"ended with status 3.*server\.log:\n    no room"):
        server.wait(lambda: False, 60.0)
    server.stop()
    assert "no room" in server.log_file.read_text()


def test_a_server_that_is_never_ready_is_an_error(started, caplog):
    server = started(FOREVER)
    with pytest.raises(
        GermlineError, match=r"did not answer within engine\.startup_timeout_s=0\.8 s"
    ):
        server.wait(lambda: False, 0.8)
    assert "is starting" in caplog.text
    assert str(server.log_file) in caplog.text


def test_a_server_that_ends_after_it_was_ready_is_a_lost_engine(started):
    server = started("raise SystemExit(5)")
    server.check_alive()  # it is not ready yet
    server.wait(lambda: True, 60.0)
    with pytest.raises(EngineLost, match="ended with status 5; a resumed run starts another"):
        wait_until(server.check_alive)


def test_a_stopped_server_leaves_no_process_and_no_file(started, tmp_path):
    server = started(PARENT_AND_CHILD, tmp_path / "ids")
    server.wait(lambda: True, 60.0)
    ids = processes(tmp_path / "ids")
    assert all(runs(one) for one in ids)
    server.stop()
    wait_until(lambda: not any(runs(one) for one in ids))
    assert not server.log_file.exists()


def test_a_server_that_ignores_sigterm_is_killed_with_its_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(watchdog, "GRACE_S", 0.1)
    program = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{PARENT_AND_CHILD}"
    command = [sys.executable, "-c", program, str(tmp_path / "ids")]
    server = subprocess.Popen(command, start_new_session=True)
    ids = processes(tmp_path / "ids")
    watchdog.terminate(server)
    wait_until(lambda: not any(runs(one) for one in ids))


def test_the_server_of_a_killed_run_ends(tmp_path):
    run = (
        "import sys, time\n"
        "from germline.engines.sglang.server import LaunchedServer\n"
        f"program = {PARENT_AND_CHILD!r}\n"
        "command = [sys.executable, '-c', program, sys.argv[1]]\n"
        "server = LaunchedServer(command, {}, '')\n"
        "time.sleep(1000)\n"
    )
    killed = subprocess.Popen([sys.executable, "-c", run, str(tmp_path / "ids")])
    ids = processes(tmp_path / "ids")
    killed.kill()
    killed.wait()
    wait_until(lambda: not any(runs(one) for one in ids))


def launched(**section):
    engine = {"kind": "sglang", "launch": True, **section}
    return load_config({"model": str(folder("qwen2")), "space": "low_rank", "engine": engine})


@pytest.fixture
def shown(tmp_path):
    """Return a function that starts a server whose interpreter is a program that logs its call."""
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$* with $OMP_NUM_THREADS threads" > "$0.called"\nexit 1\n')
    program.chmod(0o755)

    def words(**section):
        with pytest.raises(GermlineError, match="ended with status 1"):
            make_engine(launched(python=str(program), device="cpu", **section))
        return (tmp_path / "python.called").read_text()

    return words


def test_the_command_of_a_launched_server_fits_model_space_and_settings(shown):
    called = shown()
    for flags in (
        f"-m sglang.launch_server --model-path {folder('qwen2')} --skip-server-warmup --host",
        "--dtype float32 --device cpu --attention-backend torch_native",
        "--enable-lora --max-lora-rank 1 --lora-target-modules down_proj gate_proj k_proj o_proj",
        "--max-loras-per-batch 17",
    ):
        assert flags in called
    called = shown(dtype="bfloat16", adapters=5, threads=3, options=("--tp-size", "2"))
    for words in ("--dtype bfloat16", "--max-loras-per-batch 6 --tp-size 2", "with 3 threads"):
        assert words in called


def test_a_gpu_is_selected_by_its_number(monkeypatch, tmp_path):
    program = tmp_path / "python"
    program.symlink_to(sys.executable)
    commands = []
    monkeypatch.setattr(
        LaunchedServer, "__init__", lambda _, command, *rest: commands.append(command)
    )
    for device in ("cuda", "cuda:3"):
        section = launched(python=str(program), device=device).engine
        sglang_server.launch_server(section, "it", torch.float32, [])
    plain, numbered = (" ".join(command) for command in commands)  # every argument is text
    assert plain.endswith("--device cuda")
    assert numbered.endswith("--device cuda --base-gpu-id 3")
