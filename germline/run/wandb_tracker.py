"""Track a run with Weights & Biases; the only module that imports wandb (extra `wandb`).

The config of the run, the scalars of `scalar_observer` and the figure are logged. W&B's own
environment variables apply: WANDB_PROJECT (default: `germline`), WANDB_ENTITY, WANDB_MODE=offline,
and those that `wandb agent` sets. A failure at the start of a run stops it; a later one is logged
once, and the run continues without the tracker.
"""

import logging
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from germline.record import RunDirectory
from germline.record.seed_study import is_seed_study
from germline.run import observers
from germline.run.scalar_observer import ScalarObserver
from germline.types import GermlineError

log = logging.getLogger(__name__)

FINISH_S = 60.0
"""Seconds that the end of a run waits for uploads; `wandb sync` uploads the rest."""


def check_wandb_installed() -> None:
    """Refuse `record.wandb` without the package."""
    # W&B writes folders named `wandb`, which Python imports as packages without a file.
    if getattr(find_spec("wandb"), "origin", None) is None:
        raise GermlineError("record.wandb=true needs wandb: pip install 'germline[wandb]'")


class WandbTracker(ScalarObserver):
    """Logs a run to W&B, whose files are in the `wandb` folder of the run directory.

    A resumed run continues its W&B run.

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
        self._call(lambda run: self._log(run, scalars, axis, step))

    def on_stop(self) -> None:
        """Remember that training came to an end; one that raises an error never does."""
        self._has_stopped = True

    def close(self) -> None:
        """Log the figure and finish the W&B run, as failed where an error ended the training."""
        if self._has_stopped:
            self._call(self._log_figure)
        self._call(lambda run: run.finish(exit_code=0 if self._has_stopped else 1))

    def _log(self, run: Any, scalars: Mapping[str, float], axis: str, step: int) -> None:
        for name in scalars.keys() - self._steps:
            run.define_metric(name, step_metric=axis)
        self._steps.update(scalars)
        run.log({axis: step, **scalars})

    def _log_figure(self, run: Any) -> None:
        import wandb

        observers.draw_evolution(self._directory)
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
