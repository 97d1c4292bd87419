"""Write TensorBoard events; the only module that imports tensorboardX.

The scalars are those of `scalar_observer`. Events of a resumed run make TensorBoard drop those of
generations that are run again.

Records are written synchronously, without the library's `SummaryWriter`: its writer thread dies on
a full disk, and then every caller blocks forever.
"""

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import scalar

from germline.record.atomic_files import explain_write_errors
from germline.run.scalar_observer import ScalarObserver

FLUSH_S = 5
"""Seconds between two flushes of the file."""

FILE_VERSION = "brain.Event:2"
"""Version in the first event of a file, by which TensorBoard recognizes the format."""


class TensorBoard(ScalarObserver):
    """Writes the scalars of a run into its `tensorboard` folder."""

    def __init__(self, folder: Path, first_generation: int = 0) -> None:
        # The time has whole seconds: a run that is resumed at once must not overwrite its events.
        place = f"{int(time.time())}.{socket.gethostname()}.{first_generation}"
        self.path = folder / f"events.out.tfevents.{place}"
        with explain_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = RecordWriter(str(self.path))
        self._flushed = 0.0
        self._write(Event(wall_time=time.time(), file_version=FILE_VERSION))
        if first_generation > 0:
            start = SessionLog(status=SessionLog.START)
            self._write(Event(step=first_generation, file_version=FILE_VERSION))
            self._write(Event(step=first_generation, session_log=start))

    def write_scalars(self, scalars: Mapping[str, float], axis: str, step: int) -> None:
        """Write an event per number."""
        for name, value in scalars.items():
            self._write(Event(wall_time=time.time(), step=step, summary=scalar(name, value)))

    def close(self) -> None:
        """Flush and release the event file."""
        with self._writing():
            self._file.close()

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
