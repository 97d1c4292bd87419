"""Commands of studies, run in this process instead of processes of their own."""

from pathlib import Path
from typing import Any

import pytest

from germline.studies import run_processes
from tests.command_line import command


class InThisThread:
    """An executor without threads, as the signals of `germline train` need the main one."""

    map = staticmethod(map)

    def __init__(self, _jobs: int) -> None: ...

    def __enter__(self) -> "InThisThread":
        return self

    def __exit__(self, *_: object) -> None: ...


def run_commands_here(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Run the commands of studies in this process; return the list of those that ran."""
    called: list[tuple[str, ...]] = []

    def in_process(_self: Any, _config: Any, path: Path, *arguments: str) -> tuple[str, str]:
        called.append(arguments)
        result = command(*arguments, "--json")
        printed = result.stdout.encode()
        return result.stdout, run_processes.failure_of(path, printed, result.exit_code)

    monkeypatch.setattr(run_processes, "ThreadPoolExecutor", InThisThread)
    monkeypatch.setattr(run_processes.RunProcesses, "run", in_process)
    return called
