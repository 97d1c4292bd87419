"""Engines as Ray actors, on a cluster that is started here or joined by address.

Each engine has a placement group, which reserves what it needs on one node: an engine whose group
is pending waits for resources. Snapshots are sent to and from this process; the hosts need no
shared disk, but every host must be able to load the model.

The terminal shows no output of Ray: what engines print goes to the logs of the session of Ray.

Known limit: an address is one that Ray itself can join; Ray Client (`ray://`) is not supported.
"""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from germline.fleet.worker_jobs import (
    EngineJob,
    JobDone,
    JobRaised,
    Outcome,
    RemoteEngine,
    RemoteEngineLost,
    run_and_catch,
)
from germline.protocols import Engine
from germline.types import GermlineError

POLL_S = 0.2
"""Seconds between two checks whether a pending placement group is ready."""

STORE_BYTES = 256 * 2**20
"""Memory for objects where Ray is started here; snapshots that are larger go to disk."""


class RayCluster:
    """The connection of a run to Ray.

    Args:
        address: of a cluster, `auto` for the one this machine belongs to; None starts one here.
        cpus: that Ray may assign, where it is started here.
    """

    def __init__(self, address: str | None, cpus: int) -> None:
        # A script that uses germline may have started Ray already; then the script stops it.
        self._ours = not ray.is_initialized()
        if not self._ours:
            joined = ray.get_runtime_context().gcs_address
            if address not in (None, "auto", joined):
                raise GermlineError(
                    f"fleet.address={address} is not the cluster this script has joined, {joined}: "
                    "drop it, or call ray.shutdown() before"
                )
            return
        # Ray's processes inherit them. The second one says whether engines without a GPU of their
        # own see any; Ray warns of a coming change where it is unset.
        variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}
        for name, value in variables.items():
            os.environ.setdefault(name, value)
        own = {"num_cpus": cpus, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        with _restored_signals():
            try:
                ray.init(
                    address=address or "local",
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    **({} if address else own),
                )
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                where = f"fleet.address={address}" if address else "fleet: Ray on this machine"
                raise GermlineError(f"{where} cannot be used: {error}") from error

    def close(self) -> None:
        """Leave the cluster; stop it where it was started here."""
        if self._ours:
            ray.shutdown()


def resources_report(resources: Mapping[str, float]) -> str:
    """Return what an engine needs, what the cluster has, and the settings that help."""
    total, free = ray.cluster_resources(), ray.available_resources()
    kinds = sorted({"CPU", "GPU", *resources})
    has = ", ".join(f"{kind} {total.get(kind, 0):g} ({free.get(kind, 0):g} free)" for kind in kinds)
    needs = ", ".join(f"{kind}: {count:g}" for kind, count in resources.items())
    return (
        f"each needs {{{needs}}} on one node (fleet.resources), and the cluster has {has}: ask for "
        "less, for fewer engines (fleet.engines), or wait longer "
        "(fleet.placement_timeout_s)"
    )


def has_gpus() -> bool:
    """Whether the cluster has a GPU."""
    return ray.cluster_resources().get("GPU", 0) > 0


@contextlib.contextmanager
def _restored_signals() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces: germline handles how a run ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class RayEngineActor:
    """The actor, which holds the engine."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def load(self, load: Callable[[], Engine]) -> Outcome:
        """Load the engine, and return the digest of its weights."""

        def loaded() -> str:
            self._engine = load()
            return self._engine.weights.digest()

        return run_and_catch(loaded)

    def do(self, job: EngineJob) -> Outcome:
        """Do a job."""
        engine: Any = self._engine  # it is sent jobs once it has loaded
        return run_and_catch(lambda: job(engine))


class RayEngine:
    """One engine in an actor, seen from the run.

    `load` makes the engine there and is pickled; it needs the `resources`, by the names that Ray
    uses, on one node.
    """

    def __init__(
        self, number: int, load: Callable[[], Engine], resources: Mapping[str, float]
    ) -> None:
        self.name = f"engine {number}"
        self._load = load
        self._resources = dict(resources)
        self._group: Any = None
        self._actor: Any = None
        self.pending: Any = None  # a reference to the outcome to come
        self.waits_for_resources = False  # whether its group was pending at the last check

    def start(self) -> None:
        """Request a placement group and an actor in it, which loads the engine when it starts."""
        self.stop()
        self._group = placement_group([self._resources], strategy="STRICT_PACK")
        self._actor = (
            ray.remote(RayEngineActor)
            .options(
                **_asked_for(self._resources),
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_capture_child_tasks=True
                ),
            )
            .remote()
        )
        self.waits_for_resources = True
        self.pending = self._actor.load.remote(self._load)

    def send(self, job: EngineJob) -> None:
        """Begin a job; that an actor is gone is reported by `outcome`."""
        self.pending = self._actor.do.remote(job)

    def stop(self) -> None:
        """Kill the actor and remove its placement group."""
        # Either may be gone already, or the cluster with them.
        with contextlib.suppress(RayError, ValueError):
            if self._actor is not None:
                ray.kill(self._actor, no_restart=True)
        with contextlib.suppress(RayError, ValueError):
            if self._group is not None:
                remove_placement_group(self._group)
        self._actor = self._group = self.pending = None
        self.waits_for_resources = False

    def found_resources(self) -> bool:
        """Check whether its placement group is ready."""
        self.waits_for_resources = not self._group.wait(0)
        return not self.waits_for_resources

    def outcome(self) -> Outcome:
        """Read the outcome of the job; its reference must be ready."""
        self.waits_for_resources = False
        try:
            value = ray.get(self.pending)
        except RayError as error:
            return RemoteEngineLost(_cause(error))
        except Exception as error:  # noqa: BLE001 - an invalid pickle can raise any error
            return RemoteEngineLost(f"its result cannot be read: {error}")
        assert isinstance(value, JobDone | JobRaised)
        return value


def wait_for_outcome(
    remotes: Sequence[RemoteEngine], timeout: float | None
) -> list[tuple[RemoteEngine, Outcome]]:
    """Wait until one of these actors has an outcome or gets its resources, or time is up."""
    engines = [remote for remote in remotes if isinstance(remote, RayEngine)]
    pending = [engine.pending for engine in engines]
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        waits_for_resources = [engine for engine in engines if engine.waits_for_resources]
        left = None if end is None else max(0.0, end - time.monotonic())
        pause = left if not waits_for_resources else POLL_S if left is None else min(POLL_S, left)
        if ray.wait(pending, timeout=pause)[0]:
            ready, _ = ray.wait(pending, num_returns=len(pending), timeout=0)
            return [(engine, engine.outcome()) for engine in engines if engine.pending in ready]
        if any([engine.found_resources() for engine in waits_for_resources]) or left == 0:  # noqa: C419 - check all
            return []


def _asked_for(resources: Mapping[str, float]) -> dict[str, object]:
    words = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    asked: dict[str, object] = {"num_cpus": 0}
    asked |= {words[kind]: count for kind, count in resources.items() if kind in words}
    return {**asked, "resources": {k: v for k, v in resources.items() if k not in words}}


def _cause(error: RayError) -> str:
    """Return the line of a Ray error that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    relevant = [line for line in lines if line.startswith(("The actor", "Worker exit", "The node"))]
    return " ".join(relevant or lines[:1]) or type(error).__name__
