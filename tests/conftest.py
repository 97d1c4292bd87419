"""What every test relies on: no network, short runs, GPU tests that say why they do not run."""

import base64
import gc
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from germline.record import RunDirectory

# Before anything imports huggingface_hub: a test that needs a download must fail, not wait, and
# what a test measures is not left in the cache of the user.
os.environ["HF_HUB_OFFLINE"] = "1"
_assets = TemporaryDirectory(prefix="germline-tests-")
os.environ["HF_ASSETS_CACHE"] = _assets.name
# A file in place of the folder: no run takes over the calibration of another one.
Path(_assets.name, "germline").mkdir()
Path(_assets.name, "germline", "calibration").touch()


EMPTY_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
"""A picture of one pixel."""
OBSERVERS = "germline.run.observers"


@pytest.fixture(scope="session", autouse=True)
def no_figures() -> Iterator[None]:
    """Leave evolution.png and the charts of pages empty: they take 4/5 of the time of a short run.

    `drawn_figures` draws them all the same, and so does every process that a test starts.
    """
    with pytest.MonkeyPatch.context() as patch:
        if OBSERVERS in sys.modules:  # importing it costs seconds, and many tests train nothing
            patch.setattr(f"{OBSERVERS}.draw_evolution", _leave_figure_empty)
        if page := sys.modules.get("germline.report.html_page"):
            patch.setitem(page._environment().filters, "svg", lambda _chart: "<svg></svg>")
        yield


@pytest.fixture(scope="session", autouse=True)
def no_search_for_children() -> Iterator[None]:
    """Let a clock stand in for the processor time of a run: psutil reads all processes for it.

    It took a fifth of the time of a short run.
    """
    with pytest.MonkeyPatch.context() as patch:
        if meter := sys.modules.get("germline.run.training"):
            patch.setattr(meter, "_cpu_s", time.perf_counter)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Let `os.fsync` return at once: it took a tenth of the time of a short run.

    It matters when a machine loses power. Processes that a test starts wait for the disk.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", _check_descriptor)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_long_pauses() -> Iterator[None]:
    """Let requests that failed be repeated at once."""
    with pytest.MonkeyPatch.context() as patch:
        if client := sys.modules.get("germline.engines.http_client"):
            patch.setattr(client, "FIRST_PAUSE_S", 0.001)
        yield


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Qwen2, which tests only read."""
    from tests.tiny import save_tiny

    return save_tiny(tmp_path_factory.mktemp("model"))


def _check_descriptor(descriptor: int) -> None:
    os.fstat(descriptor)


def _leave_figure_empty(run: "RunDirectory") -> None:
    from germline.record.atomic_files import write_atomically

    write_atomically(run.figure, EMPTY_PNG)


@pytest.fixture(autouse=True)
def log_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away the handler, which writes to stderr, and the level that a command leaves."""
    monkeypatch.setattr(logging.getLogger("germline"), "handlers", [])
    if logging.getLogger("germline").level:  # setting it takes a millisecond
        logging.getLogger("germline").setLevel(logging.NOTSET)


@pytest.fixture
def drawn_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runs of a test draw their figures, and pages their charts."""
    from germline.report.html_page import _environment
    from germline.report.plots import draw_evolution, svg

    monkeypatch.setattr(f"{OBSERVERS}.draw_evolution", draw_evolution)
    monkeypatch.setitem(_environment().filters, "svg", svg)


@pytest.fixture(scope="module")
def graded_in_process() -> Iterator[None]:
    """Let the runs of a module grade without a process: starting it takes as long as a run."""
    from tests.toy_runs import grading_in_process

    with grading_in_process():
        yield


@pytest.fixture
def engines_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fleets of several engines have them here: a process imports torch for seconds."""
    from tests.remote_engines import Chance, PickledEngine

    monkeypatch.setattr("germline.run.build_fleet.EngineProcess", PickledEngine)
    monkeypatch.setattr("germline.run.build_fleet.wait_for_outcome", Chance())


def pytest_collection() -> None:
    """Collect no garbage while modules are imported: it took a fifth of the time of this."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave out what the imports made whenever garbage is collected."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let the end of the process collect all of it: extension modules report what is left."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests and cases of `slow.txt`; skip GPU tests where torch finds no accelerator."""
    slow = set(Path(__file__).with_name("slow.txt").read_text("utf-8").splitlines())
    for item in items:
        test = item.nodeid.partition("[")[0]
        if slow & {item.nodeid, test, test.rpartition("::")[0]}:
            item.add_marker("slow")
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import torch  # importing it costs seconds, and most selections need no answer

    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(
                pytest.mark.skip(reason="needs a GPU: torch.cuda.is_available() is False")
            )
