"""Begin, resume and fork runs."""

from __future__ import annotations  # help() shows the names of types as they are written here

import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from germline.checkpoint import newest_snapshot, recall_updates
from germline.config import Conciseness, Config, CustomTask, InProcess, load_config
from germline.config.config_files import absolute_path
from germline.config.loader import read_settings
from germline.config.rules import check_rules
from germline.estimates.machine import with_dtype
from germline.graders.reward_functions import Rewards
from germline.record import JournalEntry, RunDirectory
from germline.record.journal import Ancestor
from germline.record.run_paths import choose_directory
from germline.report.comparison import differing_settings
from germline.run.build_fleet import engine_threads
from germline.run.build_parts import build_run_parts
from germline.run.model_prompts import with_prompt_date
from germline.run.preflight import check_custom_reward
from germline.run.training import Training
from germline.run.weights import find_generation
from germline.tasks.python_inputs import NO_INPUTS, PythonInputs, RowsLike, read_inputs
from germline.types import GermlineError, Update

log = logging.getLogger(__name__)

RESUMABLE = ("generations", "budget", "held_out", "retained", "record", "graders", "fleet")
"""Settings that a resumed run may change; changing others would make it another run."""
SERVER = (
    *("base_url", "launch", "python", "startup_timeout_s", "timeout_s", "retry_timeout_s"),
    *("adapters", "options"),
)
"""Settings of an engine that a resumed run may change: its place and its memory."""
DEFINES_WEIGHTS = ("model", "space")
"""Sections that say what the weights are: no run that continues another one may change them."""


def train(
    config: Config | Mapping[str, Any] | Path | str,
    out: Path | str | None = None,
    *,
    reward: Rewards | None = None,
    data: RowsLike | Mapping[str, RowsLike] | None = None,
) -> Training:
    """Begin a run: load the objects of a config, make the run directory, return the training.

    Nothing is trained until the training is iterated, or its `run` is called.

    Args:
        config: a Config, a mapping of settings, or the path of a YAML file.
        out: the run directory; by default a new one under `runs/`.
        reward: a function of (completion, example) or of (completions, **columns) as in TRL, a list
            of them, or functions with their weights; instead of the task's own rewards.
        data: rows with `prompt` and perhaps `answer`: a list, a `datasets.Dataset`, a pandas
            `DataFrame`, or a mapping with `train` and `test` of these; instead of `task`.

    Raises:
        GermlineError: a setting is wrong, the model or task cannot be loaded, or the directory is
            not empty.
    """
    inputs = read_inputs(reward, data)
    return begin_run(_with_inputs(config, inputs), out, inputs=inputs)


def begin_run(
    config: Config,
    out: Path | str | None = None,
    ancestors: Sequence[Ancestor] = (),
    inputs: PythonInputs = NO_INPUTS,
) -> Training:
    """Begin a run from the base model, or from the weights that `ancestors` led to, in order."""
    recorded = config.with_absolute_paths()
    path = choose_directory(recorded, None if out is None else Path(out))
    loadable = with_prompt_date(recorded)
    if not ancestors:  # a fork has the dtype of the run that it begins from
        loadable = with_dtype(loadable)
    parts = build_run_parts(loadable, ancestors, inputs)
    with ExitStack() as on_error:
        on_error.callback(parts.close)
        check_custom_reward(parts.config, parts.task, parts.graders)
        parts.held_out_scorers.check(parts.held_out_examples)
        resolved, digest = parts.config, getattr(parts.task, "digest", None)
        if isinstance(resolved.task, CustomTask) and digest is not None:  # of its code and rows
            section = resolved.task.model_copy(update={"digest": digest})
            resolved = resolved.model_copy(update={"task": section})
        directory = RunDirectory.create(
            path, resolved, parts.fleet.digest(), engine_threads(resolved), ancestors
        )
        on_error.pop_all()
    return Training(parts, directory)


def resume(
    path: Path | str,
    overrides: Sequence[str] = (),
    *,
    reward: Rewards | None = None,
    data: RowsLike | Mapping[str, RowsLike] | None = None,
) -> Training:
    """Continue a stopped or killed run, to the same bits as if it had never stopped.

    `overrides` are settings that a resumed run may change, such as `generations=100`. `reward` and
    `data` are what was given to `train`.

    Raises:
        GermlineError: an override would make it another run, or the weights cannot be loaded.
    """
    directory = RunDirectory.open(Path(path))
    scorers = directory.config.held_out.scorers
    config = resumed_config(directory.config, overrides)
    inputs = read_inputs(reward, data)
    loadable, engine = config, config.engine
    if isinstance(engine, InProcess) and engine.threads is None:
        # Another number of threads than that of the beginning may round differently.
        engine = engine.model_copy(update={"threads": directory.environment["threads"]})
        loadable = config.model_copy(update={"engine": engine})
    with ExitStack() as on_error:
        directory.acquire_lock()
        on_error.callback(directory.release_lock)
        entries = _entries_to_resume(directory, config)
        parts = build_run_parts(loadable, directory.ancestors, inputs)
        on_error.callback(parts.close)
        parts.held_out_scorers.check(parts.held_out_examples, scorers)
        complete = recall_updates(parts.method.recall, entries)
        parts.restore(complete, directory.snapshots, directory.base_digest)
        directory.journal.cut(len(entries))
        directory.truncate(len(entries) - 1)
        directory.update_config(config)
        training = Training(parts, directory)
        on_error.pop_all()
    return training


def fork(
    path: Path | str,
    generation: int | Literal["best"] = "best",
    overrides: Sequence[str] = (),
    out: Path | str | None = None,
    *,
    reward: Rewards | None = None,
    data: RowsLike | Mapping[str, RowsLike] | None = None,
) -> Training:
    """Begin a new run that starts from the weights of an old one after a generation.

    The new run counts its generations from 0, and its directory is self-contained: it keeps the
    journal of the old run up to that generation. Its optimizer starts without moments. Unless
    `seed` is among the overrides, its run seed differs from that of every other run, so that it
    repeats neither perturbations nor batches.

    `generation` is the last update to include, -1 for none; or `best`: that before the best
    held-out score. `overrides` differ in the new run; `model` and `space` cannot change. `out` is
    the new run directory, by default under `runs/`. The rest is as for `resume`.

    Raises:
        GermlineError: the run does not have that generation, its weights cannot be loaded from
            its journal, or a setting cannot change.
    """
    directory = RunDirectory.open(Path(path))
    parent = _as_ancestor(directory, find_generation(directory, generation))
    config = forked_config(directory.config, overrides, parent)
    return begin_run(config, out, (*directory.ancestors, parent), read_inputs(reward, data))


def resumed_config(config: Config, overrides: Sequence[str]) -> Config:
    """Return the config of a run with overrides."""
    changed = load_config(config, overrides)
    if changed.model not in (config.model, "nano"):
        changed = changed.model_copy(update={"model": absolute_path(changed.model)})
    differing = differing_settings([config, changed])
    # Where a section is of another kind, its other settings follow from that.
    for setting in sorted(differing, key=lambda name: not name.endswith(".kind")):
        section, _, name = setting.partition(".")
        was, asked = differing[setting]
        if section in RESUMABLE or (section == "engine" and name.partition(".")[0] in SERVER):
            continue
        if setting == "model" and _was_moved(was, asked):
            continue  # The folder that it is in now; its digest is compared.
        raise _cannot_change(setting, was, asked)
    schedule = config.strategy.whole_run
    if schedule and changed.generations != config.generations:
        raise GermlineError(
            f"resume: generations={changed.generations} would change the {schedule.kind} schedule, "
            f"which is defined over {config.generations} generations; start a new run, or use "
            "constant values"
        )
    return changed


def forked_config(config: Config, overrides: Sequence[str], parent: Ancestor) -> Config:
    """Return the config of a new run from that of its parent."""
    # The run seed follows from the starting weights.
    name = f"fork of seed {parent.config.seed} at {parent.digest}"
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
    changed = load_config(config.model_copy(update={"seed": seed}), overrides)
    for setting, (was, asked) in differing_settings([config, changed]).items():
        if setting.partition(".")[0] in DEFINES_WEIGHTS:
            raise _cannot_change(setting, was, asked)
    if config.engine.has_own_model != changed.engine.has_own_model:
        raise GermlineError(
            f"resume: engine.kind={changed.engine.kind} has another model than "
            f"{config.engine.kind}, with which the weights were trained"
        )
    return changed


def _cannot_change(setting: str, was: object, asked: object) -> GermlineError:
    shown = ["not set" if value in (None, ...) else repr(value) for value in (was, asked)]
    remedy = "begin a new run from a generation of this one: germline resume RUN --from GENERATION"
    if setting.partition(".")[0] in DEFINES_WEIGHTS:
        remedy = (
            "it defines the weights: `germline export RUN --merged --out MODEL` writes them as a "
            "model, and `germline train CONFIG model=MODEL` begins a new run with them"
        )
    return GermlineError(
        f"resume: {setting} cannot change within a run (it was {shown[0]}, asked for is "
        f"{shown[1]}); {remedy}"
    )


def _entries_to_resume(directory: RunDirectory, config: Config) -> list[JournalEntry]:
    entries = directory.journal.read()
    if lost := directory.lost_generations:
        log.warning(
            "%s: the journal lines of generations %d to %d are missing: they are trained again. To "
            "have them back without that, stop now (Ctrl-C) and restore the journal from a copy",
            *(directory.journal.path, lost.start, lost[-1]),
        )
    if len(entries) > config.generations:
        raise GermlineError(
            f"generations={config.generations}, but the run already has {len(entries)}: "
            "use `germline export --generation` for an earlier one"
        )
    if not config.method.replayable:
        # Seeds cannot rebuild generations after the newest snapshot: they are run again.
        entries = entries[: newest_snapshot(directory.snapshots, len(entries) - 1) + 1]
    if len(entries) < config.generations and (ending := directory.ended_by(config)):
        raise GermlineError(
            f"{ending.setting}: the run stopped early, as {ending.reason}; to go on, set another "
            f"value, such as {ending.override}"
        )
    return entries


def _as_ancestor(directory: RunDirectory, generation: int) -> Ancestor:
    method = directory.config.method
    if not method.trains_center:
        raise GermlineError(
            f"resume: method.kind={method.kind} changes no weights, so all its generations have "
            "the starting weights: begin a new run with `germline train`"
        )
    entries = directory.journal.read()[: generation + 1]
    if any(isinstance(entry.update, Update) and entry.update.backpropagated for entry in entries):
        raise GermlineError(
            f"resume: generation {generation} followed gradients found by backpropagation, which "
            "the journal that a new run keeps cannot repeat: write the weights as a model and "
            f"train that: `germline export {directory.path} --generation {generation} --merged "
            "--out MODEL`, then `germline train CONFIG model=MODEL`"
        )
    return Ancestor(
        path=str(directory.path.resolve()),
        generation=generation,
        base_digest=directory.base_digest,
        config=directory.config,
        entries=tuple(entries),
    )


def _was_moved(was: object, asked: object) -> bool:
    """Whether the folder or file of a model is gone, and another one is given in its place."""
    old, new = Path(str(was)), Path(str(asked))
    return old.is_absolute() and not old.exists() and new.exists()


def _with_inputs(source: Config | Mapping[str, Any] | Path | str, inputs: PythonInputs) -> Config:
    """Return the config of a run with rewards or rows from Python: it records their names."""
    if inputs == NO_INPUTS:
        if not isinstance(source, Config):
            return load_config(source)
        check_rules(source)
        return source
    values = read_settings(source) if not isinstance(source, Config) else source.model_dump()
    task = values.get("task", {})
    if isinstance(source, Config) and source.task == Conciseness():
        task = {}  # the default, which nobody asked for
    task = {"kind": task} if isinstance(task, str) else dict(task)
    if inputs.rows is not None and task.setdefault("kind", "rows") != "rows":
        raise GermlineError(
            f"data: task={task['kind']} has examples of its own: leave out data, or drop the "
            "task from the config"
        )
    if inputs.rewards:
        task["reward_functions"] = inputs.weights
    return load_config({**values, "task": task or "conciseness"})
