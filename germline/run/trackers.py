"""Track a training with TensorBoard and with Weights & Biases (extra `wandb`).

Scalars: `fitness/{mean,p20,p80,best}`, `search/sigma`, `search/<value that a strategy reports>`,
`parts/<rubric part>`, `signals/<name>` and `speed/tokens_per_s` by generation,
`held_out/<metric>`, `held_out/<scorer>`, `held_out_parts/<rubric part>`, `behavior/<detector>`
and `retained/<name>` by updates applied.

W&B's own environment variables apply: WANDB_PROJECT (default: `germline`), WANDB_ENTITY,
WANDB_MODE=offline, and those that `wandb agent` sets.
"""

import logging
import math
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import scalar

from germline.record import RunDirectory
from germline.record.atomic_files import explain_write_errors
from germline.record.metrics_rows import generation_row
from germline.record.run_paths import is_seed_study
from germline.run.observers import Observer, draw_evolution
from germline.types import GenerationRecord, GermlineError, HeldOutScore, Rollout

log = logging.getLogger(__name__)

FILE_VERSION = "brain.Event:2"
"""Version in the first event of a file, by which TensorBoard recognizes the format."""

FINISH_S = 60.0
"""Seconds that the end of a run waits for uploads; `wandb sync` uploads the rest."""


class ScalarObserver(Observer, ABC):
    """Passes the numbers of every generation and held-out score to `write_scalars`."""

    _scored: int | None = None

    @abstractmethod
    def write_scalars(self, scalars: Mapping[str, float], axis: str, step: int) -> None:
        """Write numbers by name, at a place on `axis`, which is `generation` or `updates`."""

    def on_generation(self, record: GenerationRecord) -> None:
        """Write the known numbers of one generation."""
        row = generation_row(record)
        names = {"mean": "mean", "p20": "p20", "p80": "p80", "best": "max"}
        scalars = {
            **{f"fitness/{name}": row["fitness"][key] for name, key in names.items()},
            "search/sigma": row["sigma"],
            **_numbers("search", record.strategy_metrics),
            **_numbers("parts", row.get("parts", {})),
            **_numbers("signals", row.get("signals", {})),
            "speed/tokens_per_s": row["tokens_per_s"],
        }
        known = {name: value for name, value in scalars.items() if value is not None}
        self.write_scalars(known, "generation", record.generation)

    def on_held_out(self, score: HeldOutScore, rollouts: Sequence[Rollout] | None = None) -> None:
        """Write a held-out score, once: where training ends early, the last is told again."""
        if score.generation == self._scored:
            return
        self._scored = score.generation
        scalars = {
            **{f"held_out/{one.metric}": one.mean for one in (score, *score.scorers)},
            **{f"retained/{name}": kept.mean for name, kept in score.retained.items()},
            **_numbers("held_out_parts", score.parts),
            **_numbers("behavior", score.behavior),
        }
        self.write_scalars(scalars, "updates", score.generation)


def _numbers(group: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers by scalar name; other values, such as lists, have no curve."""
    return {
        f"{group}/{name}": float(value)
        for name, value in values.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }


class TensorBoard(ScalarObserver):
    """Writes the scalars of a run into its `tensorboard` folder.

    Events of a resumed run make TensorBoard drop those of generations that are run again. Records
    are written synchronously, without the library's `SummaryWriter`: its writer thread dies on a
    full disk, and then every caller blocks forever.
    """

    def __init__(self, folder: Path, first_generation: int = 0) -> None:
        # The time has whole seconds: a run that is resumed at once must not overwrite its events.
        place = f"{int(time.time())}.{socket.gethostname()}.{first_generation}"
        self.path = folder / f"events.out.tfevents.{place}"
        with explain_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = RecordWriter(str(self.path))
        self._write(Event(wall_time=time.time(), file_version=FILE_VERSION))
        if first_generation > 0:
            start = SessionLog(status=SessionLog.START)
            self._write(Event(step=first_generation, session_log=start))

    def write_scalars(self, scalars: Mapping[str, float], axis: str, step: int) -> None:
        """Write an event per number."""
        summaries = [scalar(name, value) for name, value in scalars.items()]
        now = time.time()
        self._write(*(Event(wall_time=now, step=step, summary=one) for one in summaries))

    def close(self) -> None:
        """Release the event file, which has been flushed."""
        with suppress(OSError):
            self._file.close()

    def _write(self, *events: Event) -> None:
        with explain_write_errors(self.path):
            for event in events:
                self._file.write(event.SerializeToString())
            self._file.flush()


def check_wandb_installed() -> None:
    """Refuse `record.wandb` without the package."""
    # W&B writes folders named `wandb`, which Python imports as packages without a file.
    if getattr(find_spec("wandb"), "origin", None) is None:
        raise GermlineError("record.wandb=true needs wandb: pip install 'germline[wandb]'")


class WandbTracker(ScalarObserver):
    """Logs config, scalars and figure of a run to W&B, whose files are in its `wandb` folder.

    A resumed run continues its W&B run. A failure at the start of a run stops it; a later one is
    logged once, and the run continues without the tracker.

    Raises:
        GermlineError: W&B does not start, such as without an API key.
    """

    def __init__(self, directory: RunDirectory) -> None:
        import wandb

        self._directory = directory
        self._steps: set[str] = set()
        self._has_stopped = False
        path = directory.path.resolve()
        given = {"WANDB_RUN_ID", "WANDB_SWEEP_ID"} & {*os.environ}
        settings = wandb.Settings(
            console="off",  # the live view is no log
            silent=True,
            finish_timeout=FINISH_S,
            finish_timeout_raises=True,
        )
        try:
            self._run: Any = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "germline"),
                name=path.name,
                group=path.parent.name if is_seed_study(path.parent) else None,
                dir=str(path),
                config=directory.config.model_dump(mode="json"),
                id=None if given else _last_run_id(path / "wandb"),
                resume="allow",
                reinit="create_new",
                settings=settings,
            )
        except Exception as error:  # wandb raises errors of many classes
            raise GermlineError(
                f"record.wandb=true: Weights & Biases did not start ({_first_line(error)}); run "
                "`wandb login`, or set WANDB_MODE=offline or record.wandb=false"
            ) from error

    def write_scalars(self, scalars: Mapping[str, float], axis: str, step: int) -> None:
        """Log numbers over `axis`, as W&B's own steps only count calls."""

        def log_scalars(run: Any) -> None:
            for name in scalars.keys() - self._steps:
                run.define_metric(name, step_metric=axis)
            self._steps.update(scalars)
            run.log({axis: step, **scalars})

        self._call(log_scalars)

    def on_stop(self) -> None:
        """Remember that training came to an end; one that raises an error never does."""
        self._has_stopped = True

    def close(self) -> None:
        """Log the figure and finish the W&B run, as failed where an error ended the training."""
        if self._has_stopped:
            self._call(self._log_figure)
        self._call(lambda run: run.finish(exit_code=0 if self._has_stopped else 1))

    def _log_figure(self, run: Any) -> None:
        import wandb

        draw_evolution(self._directory)
        run.log({"evolution": wandb.Image(str(self._directory.figure))})

    def _call(self, action: Callable[[Any], object]) -> None:
        """Call W&B unless it has failed; a failure is logged and is the last call."""
        try:
            if self._run is not None:
                action(self._run)
        except Exception as error:  # noqa: BLE001 - of many classes, none may end a training
            self._run = None
            log.warning(
                "record.wandb: Weights & Biases failed (%s); the run continues without it, and "
                "`wandb sync %s` uploads what was logged",
                *(_first_line(error), self._directory.path / "wandb" / "*run-*"),
            )


def _last_run_id(folder: Path) -> str | None:
    """Return the id of the last W&B run in a folder, where W&B names it `[offline-]run-TIME-ID`."""
    names = sorted(path.name.partition("run-")[2] for path in folder.glob("*run-*_*-*"))
    return names[-1].partition("-")[2] if names else None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
