"""What a resumed run continues from, and which settings may change: others make another run."""

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from germline.checkpoint import newest_snapshot
from germline.config import Config, Nes, load_config
from germline.config.config_files import absolute_path
from germline.record import JournalEntry, RunDirectory
from germline.record.best_generation import early_stop
from germline.record.journal_check import warn_of_lost_lines
from germline.report.diff import differing_settings
from germline.run.loaded_model import is_from_python
from germline.types import GermlineError, Update

log = logging.getLogger(__name__)

RESUMABLE = ("generations", "held_out", "record", "graders", "fleet")
"""Settings that a resumed run may change; changing others would make it another run."""
SERVER = (
    *("base_url", "launch", "python", "startup_timeout_s", "timeout_s", "retry_timeout_s"),
    *("adapters", "gpu_memory_utilization", "kv_cache_gb"),
)
"""Settings of an engine that a resumed run may change: its place and its memory."""
DEFINES_WEIGHTS = ("model", "space")
"""Sections that say what the weights are: no run that continues another one may change them."""
EXPORT_FIRST = (
    "To train its weights with another model or space, export them (`germline export RUN --merged "
    "--out MODEL`) and begin a new run with them: `germline train CONFIG model=MODEL` with the "
    "changed settings"
)


def resumed_config(config: Config, overrides: Sequence[str]) -> Config:
    """Return the config of a run with overrides.

    Raises:
        GermlineError: a setting is wrong, or would make it another run.
    """
    changed = load_config(config, overrides)
    if changed.model not in (config.model, "nano"):
        changed = changed.model_copy(update={"model": absolute_path(changed.model)})
    differing = differing_settings([config, changed])
    # Where a section is of another kind, its other settings follow from that.
    for setting in sorted(differing, key=lambda name: not name.endswith(".kind")):
        was, asked = differing[setting]
        if setting == "model" and (is_from_python(config) or _was_moved(was, asked)):
            continue  # The folder that it is in now; its digest is compared.
        _check_change(setting, was, asked)
    schedule = config.strategy.whole_run
    if schedule and changed.generations != config.generations:
        raise GermlineError(
            f"resume: generations={changed.generations} would change the {schedule.kind} schedule, "
            f"which is defined over {config.generations} generations; start a new run, or use "
            "constant values"
        )
    return changed


def warn_of_unasked_scorers(path: Path, recorded: Config, config: Config) -> None:
    """Warn that the scorers which a resumed config adds score nothing of a finished run."""
    added = [name for name in config.held_out.scorers if name not in recorded.held_out.scorers]
    if added:
        run = shlex.quote(str(path))
        log.warning(
            "the run is finished, so held_out.scorers.%s scores none of its generations: "
            "`germline eval %s` has the final weights scored, and `germline resume %s "
            "generations=%d` trains on",
            ", held_out.scorers.".join(added),
            run,
            run,
            2 * config.generations,
        )


def entries_to_resume(directory: RunDirectory, config: Config) -> list[JournalEntry]:
    """Return the generations after which a run continues.

    Raises:
        GermlineError: the run has more generations than the config, or stopped early.
    """
    entries = directory.journal.read()
    _check_recorded(directory.path, config, entries)
    warn_of_lost_lines(directory)
    if len(entries) > config.generations:
        raise GermlineError(
            f"generations={config.generations}, but the run already has {len(entries)}: "
            "use `germline export --generation` for an earlier one"
        )
    if not config.method.replayable:
        # Seeds cannot rebuild generations after the newest snapshot: they are run again.
        entries = entries[: newest_snapshot(directory.snapshots) + 1]
    scores = [row.score for row in directory.held_out()]
    if len(entries) < config.generations and early_stop(scores, config.held_out.patience):
        raise GermlineError(
            f"held_out.patience={config.held_out.patience}: the run stopped early, as its last "
            f"{config.held_out.patience} held-out scores were not better than an earlier one; to "
            "go on, set a larger number or null (germline resume RUN held_out.patience=null)"
        )
    return entries


def _was_moved(was: str, asked: str) -> bool:
    """Whether the folder or file of a model is gone, and another one is given in its place."""
    return Path(was).is_absolute() and not Path(was).exists() and Path(asked).exists()


def _check_recorded(path: Path, config: Config, entries: Sequence[JournalEntry]) -> None:
    """Check that the config is the one that the journal was written with.

    Raises:
        GermlineError: run.json has another seed or population, so it was edited.
    """
    strategy, update = config.strategy, entries[-1].update if entries else None
    if not isinstance(update, Update):
        return
    trained: dict[str, tuple[int, object]] = {"seed": (update.run_seed, config.seed)}
    if isinstance(strategy, Nes) and config.method.kind == "es":
        members = len(update.coefficients) * (2 if strategy.antithetic else 1)
        trained["strategy.population"] = members, strategy.population
    for name, (was, now) in trained.items():
        if was != now:
            raise GermlineError(
                f"resume: {path / 'run.json'} has {name}={now}, but the journal was written with "
                f"{name}={was}, which cannot change within a run: write {was} into run.json again, "
                "or begin another run with the changed setting (germline resume RUN --from "
                "GENERATION --out NEW)"
            )


def _check_change(setting: str, was: object, asked: object) -> None:
    section, _, name = setting.partition(".")
    if section in RESUMABLE or (section == "engine" and name in SERVER):
        return
    shown = ["not set" if value in (None, ...) else repr(value) for value in (was, asked)]
    way = (
        f"germline train. {EXPORT_FIRST}"
        if section in DEFINES_WEIGHTS
        else "germline train, or, from a generation of this run, germline resume RUN --from "
        "GENERATION --out NEW with the changed settings"
    )
    raise GermlineError(
        f"resume: {setting} cannot change within a run (it was {shown[0]}, asked for is "
        f"{shown[1]}); start a new run for that: {way}. A resumed run may change "
        f"{', '.join(RESUMABLE)}, and of a served engine "
        f"{', '.join(f'engine.{setting}' for setting in SERVER)}"
    )
