"""Engines as Ray actors: each in a placement group of its own, on any machine of a cluster.

A group holds what one engine needs, on one node: an engine that waits for its group waits for room
(`vacant`). States travel through Ray's object store, from host to host and not through this
process; there need be no disk that all hosts share, but every host must be able to load the model.

Known limit: an address is one that Ray itself can join; Ray Client (`ray://`) is not supported.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from germline.checkpoint import file_snapshot, newest_snapshot, save_snapshot, snapshots
from germline.fleet.carrier import Ask
from germline.fleet.elsewhere import Done, Lost, Outcome, Raised, Remote, attempt
from germline.fleet.jobs import Job
from germline.fleet.state import State
from germline.protocols import Engine

POLL_S = 0.2
"""How often it is asked whether there is room for an engine that waits for it."""


class Host:
    """The actor: an engine, seen from inside."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def load(self, load: Callable[[], Engine]) -> Outcome:
        """Load the engine, and say what its weights are."""

        def loaded() -> str:
            self._engine = load()
            return self._engine.weights.digest()

        return attempt(loaded)

    def do(self, job: Job) -> Outcome:
        """Do a job."""
        engine = self._engine
        assert engine is not None, "an engine is given jobs once it has loaded"
        return attempt(lambda: job(engine))


class RayEngine:
    """One engine in an actor, seen from the run.

    Args:
        number: its place among the engines, for messages.
        load: makes the engine there; picklable.
        resources: what it needs on one node, by Ray's names.
    """

    def __init__(
        self, number: int, load: Callable[[], Engine], resources: Mapping[str, float]
    ) -> None:
        self.name = f"engine {number}"
        self._load = load
        self._resources = dict(resources)
        self._group: Any = None
        self._actor: Any = None
        self._pending: Any = None
        self._vacant = False

    @property
    def vacant(self) -> bool:
        """Whether there was no room for it yet when it was last asked."""
        return self._vacant

    def start(self) -> None:
        """Ask for room and an actor in it, which loads the engine as soon as it is there."""
        self.stop()
        self._group = placement_group([self._resources], strategy="STRICT_PACK")
        self._actor = (
            ray.remote(Host)
            .options(
                **_asked_for(self._resources),
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_capture_child_tasks=True
                ),
            )
            .remote()
        )
        self._vacant = True
        self._pending = self._actor.load.remote(self._load)

    def send(self, job: Job) -> None:
        """Begin a job; an actor that is gone shows when its outcome is asked for."""
        self._pending = self._actor.do.remote(job)

    def stop(self) -> None:
        """Kill the actor and give its room back."""
        # Either may be gone already, or the cluster with them.
        with contextlib.suppress(RayError, ValueError):
            if self._actor is not None:
                ray.kill(self._actor, no_restart=True)
        with contextlib.suppress(RayError, ValueError):
            if self._group is not None:
                remove_placement_group(self._group)
        self._actor = self._group = self._pending = None
        self._vacant = False

    def pending(self) -> Any:
        """Return the reference to the outcome to come."""
        if self._pending is None:
            raise RuntimeError(f"nothing was asked of {self.name}")
        return self._pending

    def found_room(self) -> bool:
        """Ask whether there is room by now."""
        self._vacant = not self._group.wait(0)
        return not self._vacant

    def outcome(self) -> Outcome:
        """Read what came of the job: called when its reference is ready."""
        self._vacant = False
        try:
            value = ray.get(self.pending())
        except RayError as error:
            return Lost(_cause(error))
        except Exception as error:  # noqa: BLE001 - what cannot be unpickled can raise anything
            return Lost(f"its answer cannot be read: {error}")
        return value if isinstance(value, Done | Raised) else Lost(f"it answered {value!r}")


def wait(remotes: Sequence[Remote], timeout: float | None) -> list[tuple[Remote, Outcome]]:
    """Wait until one of these actors has an outcome or finds room, or in vain."""
    engines = [remote for remote in remotes if isinstance(remote, RayEngine)]
    pending = [engine.pending() for engine in engines]
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        vacant = [engine for engine in engines if engine.vacant]
        left = None if end is None else max(0.0, end - time.monotonic())
        pause = left if not vacant else POLL_S if left is None else min(POLL_S, left)
        if ray.wait(pending, timeout=pause)[0]:
            ready, _ = ray.wait(pending, num_returns=len(pending), timeout=0)
            return [(one, one.outcome()) for one in engines if one.pending() in ready]
        if any([engine.found_room() for engine in vacant]) or left == 0:  # noqa: C419 - ask all
            return []


@dataclass(frozen=True)
class InStore:
    """A snapshot in Ray's object store.

    Attributes:
        data: reference to its bytes, as they would stand in a file.
    """

    generation: int
    data: Any

    @contextlib.contextmanager
    def unpacked(self) -> Iterator[Path]:
        """Yield a folder that holds it, here, for a while."""
        with tempfile.TemporaryDirectory(prefix="germline-peer-") as name:
            self.write(Path(name), keep=1)
            yield Path(name)

    def write(self, folder: Path, keep: int) -> None:
        """Write it to a folder here, as the newest of `keep` snapshots."""
        data: np.ndarray = ray.get(self.data)
        file_snapshot(lambda path: path.write_bytes(data.data), folder, self.generation, keep=keep)


@dataclass(frozen=True)
class Pack:
    """Put masters and moments, as they are after a generation, into the object store."""

    generation: int

    def __call__(self, engine: Engine) -> InStore:
        """Return where they are."""
        with tempfile.TemporaryDirectory(prefix="germline-peer-") as folder:
            path = save_snapshot(engine.weights, Path(folder), self.generation, keep=1)
            return _stored(path, self.generation)

    def believes(self, answer: object) -> bool:
        """Whether it says where they are."""
        return isinstance(answer, InStore) and answer.generation == self.generation


class ObjectStore:
    """Takes states through the object store: hosts need no disk that they share."""

    @contextlib.contextmanager
    def from_peer(self, ask: Ask, generation: int) -> Iterator[State]:
        """Let an engine put its state there; newcomers get it from its host."""
        yield ask(Pack(generation))

    def from_folder(self, folder: Path) -> State | None:
        """Put the newest snapshot of a folder here there."""
        found = snapshots(folder)
        return _stored(found[-1], newest_snapshot(folder)) if found else None

    def to_folder(self, ask: Ask, folder: Path, generation: int, keep: int) -> None:
        """Let an engine put its state there, and write it to a folder here."""
        ask(Pack(generation)).write(folder, keep)


def _stored(path: Path, generation: int) -> InStore:
    return InStore(generation, ray.put(np.fromfile(path, dtype=np.uint8)))


def _asked_for(resources: Mapping[str, float]) -> dict[str, object]:
    """Spell resources as the options of an actor."""
    words = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    asked: dict[str, object] = {"num_cpus": 0}
    asked |= {words[kind]: count for kind, count in resources.items() if kind in words}
    return {**asked, "resources": {k: v for k, v in resources.items() if k not in words}}


def _cause(error: RayError) -> str:
    """Return the line of an error of Ray that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("The actor", "Worker exit", "The node"))]
    return " ".join(telling or lines[:1]) or type(error).__name__
