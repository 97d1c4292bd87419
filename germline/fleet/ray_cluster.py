"""The Ray cluster of a run: started on this machine and stopped with the run, or joined by address.

The terminal shows no output of Ray: what engines print goes to the logs of the session of Ray.
"""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping

import ray

from germline.types import GermlineError

STORE_BYTES = 256 * 2**20
"""Memory for objects where Ray is started here; states that are larger go to disk."""

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Whether engines without a GPU of their own see any; Ray warns of a change if it is not set.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
}


class RayCluster:
    """The connection of a run to Ray.

    Args:
        address: of a cluster, `auto` for the one this machine belongs to; None starts one here.
        cpus: that Ray may assign, where it is started here.
        environment: variables of engines, where Ray is started here.

    Raises:
        GermlineError: there is no cluster at that address, or Ray does not start.
    """

    def __init__(
        self, address: str | None, cpus: int, environment: Mapping[str, str] | None = None
    ) -> None:
        # A script that uses germline may have started Ray already; then the script stops it.
        self._ours = not ray.is_initialized()
        self._may_grow = address is not None or not self._ours
        if not self._ours:
            joined = ray.get_runtime_context().gcs_address
            if address not in (None, "auto", joined):
                raise GermlineError(
                    f"fleet.address={address} is not the cluster this script has joined, {joined}: "
                    "drop it, or call ray.shutdown() before"
                )
            return
        own = {"num_cpus": cpus, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        with _restored_signals(), _variables({**_QUIET, **(environment or {})}):
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

    def check_resources(self, engines: int, resources: Mapping[str, float]) -> None:
        """Refuse more engines than this machine has resources for, where Ray was started here.

        Raises:
            GermlineError: waiting would not help, as the cluster cannot grow.
        """
        total = ray.cluster_resources()
        lacks = any(engines * each > total.get(kind, 0) for kind, each in resources.items())
        if lacks and not self._may_grow:
            found = resources_report(resources)
            raise GermlineError(f"fleet: no resources for {engines} engines: {found}")

    def close(self) -> None:
        """Leave the cluster; stop it where it was started here."""
        if self._ours:
            ray.shutdown()


def resources_report(resources: Mapping[str, float]) -> str:
    """Return what an engine needs, what the cluster has, and the settings that help."""
    total, free = ray.cluster_resources(), ray.available_resources()
    kinds = sorted({"CPU", "GPU", *resources})
    has = ", ".join(f"{one} {total.get(one, 0):g} ({free.get(one, 0):g} free)" for one in kinds)
    needs = ", ".join(f"{kind}: {count:g}" for kind, count in resources.items())
    return (
        f"each needs {{{needs}}} on one node (fleet.resources), and the cluster has {has}: ask for "
        "less, for fewer engines (fleet.engines, fleet.min_engines), or wait longer "
        "(fleet.placement_timeout_s)"
    )


def has_gpus() -> bool:
    """Whether the cluster has a GPU."""
    return ray.cluster_resources().get("GPU", 0) > 0


@contextlib.contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables for processes that are started now; those that are set already stay."""
    new = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


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
