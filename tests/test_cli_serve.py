"""The command `germline serve`: what it prints, what it passes on, and what it refuses."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import pytest

from germline.services import serve
from germline.services.serve import ServedWeights
from tests.command_line import command
from tests.hang_limit import HANG_S


@pytest.fixture
def served(monkeypatch):
    """Note what is served, without a server."""
    calls = []

    class Server:
        url = "http://127.0.0.1:1"

        def run(self):
            raise KeyboardInterrupt

    @contextmanager
    def noted(*arguments):
        calls.append(arguments)
        yield Server(), ServedWeights.open("nano", overrides=["engine=toy"])

    monkeypatch.setattr(serve, "endpoint", noted)
    return calls


def test_options_and_defaults_are_passed_on_and_ctrl_c_ends_it(served):
    assert command("serve", "nano").exit_code == 0
    assert served.pop() == ("nano", None, [], "127.0.0.1", 8000, None)
    words = ("--host", "0.0.0.0", "--port", "9", "-g", "best")
    done = command("serve", "nano", *words, "engine.threads=2", GERMLINE_TOKEN="secret")
    assert done.exit_code == 0, done.output
    assert served == [("nano", "best", ["engine.threads=2"], "0.0.0.0", 9, "secret")]
    assert "http://127.0.0.1:1/v1" in done.output
    assert "models: base, center" in done.output
    assert "secret" not in done.output


def test_a_server_answers_and_ends_with_sigterm():
    command = [sys.executable, "-m", "germline", "serve", "nano", "engine=toy", "--port", "0"]
    with subprocess.Popen(
        [*command, "--json"], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        try:
            assert process.stdout
            lines = [process.stdout.readline()]
            while lines[-1] != "}\n":
                assert lines[-1]
                lines.append(process.stdout.readline())
            base_url = json.loads("".join(lines))["base_url"]
            with urllib.request.urlopen(f"{base_url}/models", timeout=HANG_S) as response:
                models = json.loads(response.read())["data"]
            assert [model["id"] for model in models] == ["base", "center"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG_S) == 0
        finally:
            process.kill()
