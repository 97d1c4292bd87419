"""Rebuild and write the weights of a run: `replay` and `export`."""

from __future__ import annotations  # help() shows the names of types as they are written here

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from germline.checkpoint import last_restorable_generation, restore
from germline.config import Config
from germline.protocols import Engine
from germline.record import RunDirectory
from germline.record.atomic_files import check_writable, explain_write_errors
from germline.run.build_parts import make_engine
from germline.run.load_run import find_generation, load_single_model, strategy_of_run
from germline.run.model_card import Form, write_model_card
from germline.run.run_inputs import LoadedModel, check_choice, read_run_inputs, with_model_folder
from germline.spaces.peft_files import rename_base
from germline.types import GermlineError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)

FORMS = (*get_args(Form), None)
"""Forms that may be asked for; None is that of the space."""


def replay(
    path: Path | str,
    generation: int | Literal["best"] | None = None,
    out: Path | str | None = None,
    form: Form | None = None,
    *,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> str:
    """Rebuild a generation from base model and journal alone; return its verified digest.

    Args:
        path: the run directory.
        generation: the last update to include, -1 for none, or `best`: that before the best
            held-out score. Default: the newest.
        out: the folder to write, if any.
        form: see `export`.
        model: the loaded model, where the run was begun with one.
        tokenizer: of the loaded model.

    Raises:
        GermlineError: the digest is not the one the journal recorded.
    """
    check_choice("form", form, FORMS)
    directory = RunDirectory.open(Path(path))
    generation = generation_to_replay(directory, generation)
    if form is not None and out is None:
        raise GermlineError(
            f"replay: {form} is a form of written weights, so name the folder as well (--out)"
        )
    form = _form(directory.config, form)
    folder = None if out is None else _free(Path(out))
    loaded = read_run_inputs(model=model, tokenizer=tokenizer).model
    config = with_model_folder(directory.config, loaded)
    entries = directory.journal.read(generation + 1 if generation >= -1 else None)
    if generation >= len(entries):
        directory.check_journal()
    engine = make_engine(config, generates=False, ancestors=directory.ancestors)
    digest = restore(
        engine.weights,
        entries,
        None,
        directory.base_digest,
        generation,
        strategy_of_run(directory.config, engine.weights.dimension),
    )
    if folder is not None:
        engine.refresh()
        _write_weights(engine, folder, form, loaded)
        write_model_card(directory, folder, form, generation)
    return digest


def generation_to_replay(directory: RunDirectory, generation: int | Literal["best"] | None) -> int:
    """Return the number of a generation to rebuild; lines of the journal after it may be damaged.

    Raises:
        GermlineError: it is no whole number, `best` has no held-out score to use, or the newest is
            asked for and the journal lost lines.
    """
    if generation is None:
        directory.check_journal()
        return directory.journal.last_generation()
    if generation == "best":
        return find_generation(directory, generation)
    if isinstance(generation, bool) or not isinstance(generation, int):
        raise GermlineError(f"generation must be a whole number or 'best', found {generation!r}")
    return generation


def export(
    path: Path | str,
    out: Path | str,
    form: Form | None = None,
    generation: int | Literal["best"] | None = None,
    *,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> None:
    """Write weights of a run: a library that loads them in fp32 generates the same tokens.

    If a run that followed gradients was killed, its newest weights are those of its newest
    snapshot.

    Args:
        path: the run directory.
        out: the folder to write.
        form: `merged` is a Hugging Face folder that plain `transformers` loads; `adapter` is one
            that plain `peft` loads. Default: the adapter where one was trained.
        generation: the last update to include, -1 for none, or `best`: that before the best
            held-out score; default: the newest.
        model: the loaded model, where the run was begun with one.
        tokenizer: of the loaded model.

    Raises:
        GermlineError: the folder is not empty, there is no adapter to write, or the run has no such
            generation.
    """
    check_choice("form", form, FORMS)
    folder = _free(Path(out))
    directory = RunDirectory.open(Path(path))
    form = _form(directory.config, form)
    last = None if generation is None else find_generation(directory, generation)
    method = directory.config.method
    if last is not None and not method.trains_center:
        raise GermlineError(
            f"export: method.kind={method.kind} keeps its best member over all generations, so "
            f"generation={generation} would be ignored: leave it out"
        )
    if generation == "best" and last == -1:
        log.warning(
            "export: the best held-out score of %s is that before training, so these are the "
            "weights that the run began with",
            directory.path,
        )
    loaded = read_run_inputs(model=model, tokenizer=tokenizer).model
    config = with_model_folder(directory.config, loaded)
    engine = load_single_model(directory, config, generates=False, generation=last)
    _write_weights(engine, folder, form, loaded)
    write_model_card(directory, folder, form, generation_to_export(directory, last))


def generation_to_export(
    directory: RunDirectory, generation: int | Literal["best"] | None = None
) -> int:
    """Return the number of the generation whose weights `export` writes, -1 for the start.

    Raises:
        GermlineError: the run has no such generation.
    """
    if generation is not None:
        return find_generation(directory, generation)
    return last_restorable_generation(directory.journal.read(), directory.snapshots)


def _form(config: Config, form: Form | None) -> Form:
    """Return the form in which weights are written: the given one, or that of the space."""
    if form == "adapter" and not config.space.trains_an_adapter:
        raise GermlineError(
            f"this run has space.kind={config.space.kind} and so no adapter to write: write the "
            "whole model (--merged)"
        )
    return form or ("adapter" if config.space.trains_an_adapter else "merged")


def _write_weights(engine: Engine, folder: Path, form: Form, loaded: LoadedModel | None) -> None:
    with explain_write_errors(folder):
        if form == "adapter":
            engine.save_adapter(folder)
            if loaded is not None:
                rename_base(folder, loaded.base)
        else:
            engine.save_model(folder)
        # safetensors writes files that only their owner can read.
        readable = next(folder.glob("*config.json")).stat().st_mode
        for weights in folder.glob("*.safetensors"):
            weights.chmod(readable)


def _free(out: Path) -> Path:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise GermlineError(
            f"out: {out} exists and is not empty; choose a new or an empty folder (--out)"
        )
    check_writable(out)
    return out
