"""Write TensorBoard events; the only module that imports tensorboardX.

Scalars: `fitness/{mean,p20,p80,best}`, `search/sigma`, `search/<value that a strategy reports>`,
`parts/<rubric part>`, `signals/<name>`, `step/<name>` and `speed/tokens_per_s` by generation,
`held_out/<metric>`, `held_out/<scorer>`, `held_out_parts/<rubric part>`, `behavior/<detector>`
and `retained/<name>` by updates applied. Events of a resumed run make TensorBoard drop those of
generations that are run again.

Records are written synchronously, without the library's `SummaryWriter`: its writer thread dies on
a full disk, and then every caller blocks forever.
"""

import math
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import scalar

from germline.record.atomic_files import explain_write_errors
from germline.record.metrics_rows import fitness_summary, mean_parts, mean_sigma
from germline.run.observers import Observer
from germline.types import GenerationRecord, HeldOutScore, Rollout, Signals

FLUSH_S = 5
"""Seconds between two flushes of the file."""

FILE_VERSION = "brain.Event:2"
"""Version in the first event of a file, by which TensorBoard recognizes the format."""


class TensorBoard(Observer):
    """Writes the scalars of a run into its `tensorboard` folder."""

    def __init__(self, folder: Path, first_generation: int = 0) -> None:
        # The time has whole seconds: a run that is resumed at once must not overwrite its events.
        place = f"{int(time.time())}.{socket.gethostname()}.{first_generation}"
        self.path = folder / f"events.out.tfevents.{place}"
        with explain_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = RecordWriter(str(self.path))
        self._flushed = 0.0
        self._scored: int | None = None
        self._write(Event(wall_time=time.time(), file_version=FILE_VERSION))
        if first_generation > 0:
            start = SessionLog(status=SessionLog.START)
            self._write(Event(step=first_generation, file_version=FILE_VERSION))
            self._write(Event(step=first_generation, session_log=start))

    def on_generation(self, record: GenerationRecord) -> None:
        """Write the known scalars of one generation."""
        fitness = fitness_summary(record.fitness)
        scalars = {
            "fitness/mean": fitness["mean"],
            "fitness/p20": fitness["p20"],
            "fitness/p80": fitness["p80"],
            "fitness/best": fitness["max"],
            "search/sigma": mean_sigma(record),
            **_numbers("search", record.strategy_metrics),
            **_numbers("parts", mean_parts(record.evaluation.rollouts)),
            **_signals(record.signals),
        }
        if record.evaluation.decode_seconds > 0:
            seconds = record.evaluation.decode_seconds
            scalars["speed/tokens_per_s"] = record.evaluation.tokens / seconds
        for name, value in scalars.items():
            if value is not None:
                self._scalar(name, value, record.generation)

    def on_held_out(self, score: HeldOutScore, rollouts: Sequence[Rollout] | None = None) -> None:
        """Write a held-out score, once: where training ends early, the last is told again."""
        if score.generation == self._scored:
            return
        self._scored = score.generation
        for one in (score, *score.scorers):
            self._scalar(f"held_out/{one.metric}", one.mean, score.generation)
        for name, kept in score.retained.items():
            self._scalar(f"retained/{name}", kept.mean, score.generation)
        grouped = {"held_out_parts": score.parts, "behavior": score.behavior}
        for group, values in grouped.items():
            for name, value in _numbers(group, values).items():
                self._scalar(name, value, score.generation)

    def close(self) -> None:
        """Flush and release the event file."""
        with self._writing():
            self._file.close()

    def _scalar(self, name: str, value: float, step: int) -> None:
        self._write(Event(wall_time=time.time(), step=step, summary=scalar(name, value)))

    def _write(self, event: Event) -> None:
        with self._writing():
            self._file.write(event.SerializeToString())
            if time.monotonic() - self._flushed > FLUSH_S:
                self._file.flush()
                self._flushed = time.monotonic()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with explain_write_errors(self.path):
            try:
                yield
            except OSError:
                # Close the file, or its destructor tries to flush again and prints a warning.
                with suppress(OSError):
                    self._file.close()
                raise


def _numbers(group: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers by scalar name; other values, such as lists, have no curve."""
    return {
        f"{group}/{name}": float(value)
        for name, value in values.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }


def _signals(signals: Signals | None) -> Mapping[str, float | None]:
    """Return the signals of a generation and of its step by scalar name; empty if not measured."""
    if signals is None:
        return {}
    values = asdict(signals)
    step = values.pop("step") or {}
    named = {f"signals/{name}": value for name, value in values.items()}
    named |= {f"step/{name}": value for name, value in step.items()}
    return {name: None if value is None else float(value) for name, value in named.items()}
