"""Fork a run: begin a new run from the weights of a generation of an old one."""

from __future__ import annotations  # help() shows the names of types as they are written here

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from germline.config import Config, load_config
from germline.graders.reward_functions import Rewards
from germline.record import RunDirectory
from germline.record.ancestry import Ancestor
from germline.report.diff import differing_settings
from germline.run.callbacks import Callback
from germline.run.inputs_from_python import read_run_inputs
from germline.run.load_run import find_generation
from germline.run.resumed_config import DEFINES_WEIGHTS, EXPORT_FIRST
from germline.run.train_run import Training, begin_run
from germline.run.validate_args import validate_path
from germline.tasks.python_inputs import RowsLike
from germline.types import GermlineError, Update

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def fork(  # noqa: PLR0913 - what was given to `train` has to be given again
    path: Path | str,
    generation: int | Literal["best"] = "best",
    overrides: Sequence[str] = (),
    out: Path | str | None = None,
    *,
    reward: Rewards | None = None,
    data: RowsLike | Mapping[str, RowsLike] | None = None,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    callbacks: Sequence[Callback] = (),
) -> Training:
    """Begin a new run that starts from the weights of an old one after a generation.

    The new run counts its generations from 0, and its directory is self-contained: it keeps the
    journal of the old run up to that generation. Its optimizer starts without moments. Unless
    `seed` is among the overrides, its run seed differs from that of every other run, so that it
    repeats neither perturbations nor batches.

    Args:
        path: the old run directory.
        generation: the last update to include, -1 for none; or `best`: that before the best
            held-out score.
        overrides: settings that differ in the new run; `model` and `space` cannot change.
        out: the new run directory; by default a new one under `runs/`.
        reward: what was given to `train`, as for `data`, `model` and `tokenizer`.
        data: see `reward`.
        model: see `reward`.
        tokenizer: see `reward`.
        callbacks: see `train`.

    Raises:
        GermlineError: the run does not have that generation, its weights cannot be loaded from
            its journal, or a setting cannot change.
    """
    directory = RunDirectory.open(validate_path("path", path))
    last = find_generation(directory, generation)
    parent = _as_ancestor(directory, last)
    config = forked_config(directory.config, overrides, parent)
    inputs = read_run_inputs(reward, data, model, tokenizer)
    return begin_run(config, out, (*directory.ancestors, parent), inputs, callbacks)


def _as_ancestor(directory: RunDirectory, generation: int) -> Ancestor:
    method = directory.config.method
    if not method.trains_center:
        raise GermlineError(
            f"resume: method.kind={method.kind} changes no weights, so all its generations have "
            "the starting weights: begin a new run with `germline train`"
        )
    entries = directory.journal.read()[: generation + 1]
    if any(isinstance(entry.update, Update) and entry.update.backpropagated for entry in entries):
        cause = "" if method.replayable else f" (method.kind={method.kind})"
        raise GermlineError(
            f"resume: generation {generation} followed gradients found by backpropagation{cause}, "
            "which a journal cannot repeat: only snapshots hold such weights. Export the newest "
            f"one and train that: `germline export {directory.path} --out MODEL`, then "
            "`germline train CONFIG model=MODEL`"
        )
    return Ancestor(
        path=str(directory.path.resolve()),
        generation=generation,
        base_digest=directory.base_digest,
        config=directory.config,
        entries=tuple(entries),
    )


def forked_config(config: Config, overrides: Sequence[str], parent: Ancestor) -> Config:
    """Return the config of a new run from that of its parent.

    Raises:
        GermlineError: an override would change the definition of theta.
    """
    changed = load_config(config.model_copy(update={"seed": _own_seed(parent)}), overrides)
    for setting, (was, asked) in differing_settings([config, changed]).items():
        _check_other_theta(setting, was, asked)
    if config.engine.has_own_model != changed.engine.has_own_model:
        raise GermlineError(
            f"resume: engine.kind={changed.engine.kind} has another model than "
            f"{config.engine.kind}, with which the weights were trained"
        )
    return changed


def _check_other_theta(setting: str, was: object, asked: object) -> None:
    if setting.partition(".")[0] not in DEFINES_WEIGHTS:
        return
    values = [("not set" if one is ... else repr(one)) for one in (was, asked)]
    raise GermlineError(
        f"resume: {setting} cannot change, as it defines the weights (it was {values[0]}, "
        f"asked for is {values[1]}). {EXPORT_FIRST}"
    )


def _own_seed(parent: Ancestor) -> int:
    """Derive the run seed of a fork from its starting weights."""
    name = f"fork of seed {parent.config.seed} at {parent.digest}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
