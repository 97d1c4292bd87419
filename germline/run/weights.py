"""The weights of a run: open it, load a generation, and rebuild or export it.

A source is a run directory, the folder of a PEFT adapter, or a model.

Beside exported weights are `germline.json` and the model card (README.md). Of the former, `chat`
and `prompt_date` are for `germline eval`, `generate` and `serve` of the folder; the rest is for
readers and the Hugging Face hub. The license is left to the user.
"""

from __future__ import annotations  # help() shows the names of types as they are written here

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from huggingface_hub import ModelCardData

from germline.checkpoint import follows_gradients, last_restorable_generation, restore
from germline.config import Config, TaskConfig, load_config
from germline.errors import count_of
from germline.estimates.machine import with_dtype
from germline.methods.method import Method, make_method
from germline.nano import NANO_DIR
from germline.protocols import Engine, Task
from germline.record import RunDirectory
from germline.record.atomic_files import (
    check_writable,
    explain_write_errors,
    write_atomically,
    write_json,
)
from germline.record.early_stopping import best_score
from germline.record.run_paths import check_source
from germline.report.comparison import changed_settings
from germline.run.build_parts import make_engine, strategy_of_run
from germline.run.model_prompts import EXPORT_FACTS, read_export_facts, sends_chats
from germline.spaces.peft_files import is_adapter, read_adapter
from germline.types import GermlineError, Perturbation

log = logging.getLogger(__name__)

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""Models of the hub, which a card may name as its base; others are folders."""

TRAINED_BY = ("method", "prompt_search", "batch_size")
"""Settings of training alone; they are not judged when the run is evaluated on another task."""

Form = Literal["adapter", "merged"]
"""Form of exported weights: a PEFT adapter (if one was trained), or a Hugging Face folder."""


def replay(path: Path | str, generation: int | Literal["best"] | None = None) -> str:
    """Rebuild a generation from base model and journal alone; return its verified digest.

    Only gradients, which seeds cannot repeat, are taken from snapshots. If a run that followed
    gradients was killed, its newest weights are those of its newest snapshot.

    Args:
        path: the run directory.
        generation: the last update to include, -1 for none, or `best`: that before the best
            held-out score. Default: the newest.

    Raises:
        GermlineError: the digest is not the one the journal recorded.
    """
    directory = RunDirectory.open(Path(path))
    generation = find_generation(directory, generation)
    engine = load_engine(directory, generates=False, generation=generation, snapshots=False)
    return engine.weights.digest()


def export(
    path: Path | str,
    out: Path | str,
    form: Form | None = None,
    generation: int | Literal["best"] | None = None,
) -> int:
    """Write weights of a run, and return the generation that they are from, -1 for the start.

    A library that loads them in fp32 generates the same tokens. If a run that followed gradients
    was killed, its newest weights are those of its newest snapshot.

    Args:
        path: the run directory.
        out: the folder to write.
        form: `merged` is a Hugging Face folder that plain `transformers` loads; `adapter` is one
            that plain `peft` loads. Default: the adapter where one was trained.
        generation: the last update to include, -1 for none, or `best`: that before the best
            held-out score; default: the newest.

    Raises:
        GermlineError: the folder is not empty, there is no adapter to write, or the run has no such
            generation.
    """
    if form not in (*get_args(Form), None):
        raise GermlineError(f"form must be 'adapter' or 'merged' or None, found {form!r}")
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise GermlineError(
            f"out: {out} exists and is not empty; choose a new or an empty folder (--out)"
        )
    check_writable(folder)
    directory = RunDirectory.open(Path(path))
    kind, is_adapter_run = directory.config.space.kind, directory.config.space.trains_an_adapter
    if form == "adapter" and not is_adapter_run:
        raise GermlineError(
            f"this run has space.kind={kind} and so no adapter to write: write the whole model, "
            "merged"
        )
    form = form or ("adapter" if is_adapter_run else "merged")
    last = generation_of_source(str(path), directory, generation)
    if last is None:
        last = newest_generation(directory)
    engine = load_single_model(directory, generates=False, generation=last)
    _write_weights(engine, folder, form)
    _write_card(directory, folder, last, "peft" if form == "adapter" else "transformers")
    return last


def find_generation(directory: RunDirectory, generation: int | Literal["best"] | None) -> int:
    """Return a generation of a run, -1 for its start; `best` is that before the best score.

    None is the newest that can be rebuilt.

    Raises:
        GermlineError: the run has no such generation, or `best` has no held-out score to use.
    """
    if generation is None:
        return newest_generation(directory)
    if generation == "best":
        best = best_score([one.score for one in directory.held_out()])
        if best is None:
            raise GermlineError(
                f"generation: {directory.path} has no held-out score, so none is the best: name a "
                "number (resume --from 40, eval -g 40), or score some generations (held_out.every)"
            )
        # A score counts updates: the weights after generation g had g + 1 updates.
        generation = best.generation - 1
    if isinstance(generation, bool) or not isinstance(generation, int):
        raise GermlineError(f"generation must be a whole number or 'best', found {generation!r}")
    # Lines of the journal after the generation may be damaged.
    if generation >= -1 and len(directory.journal.read(generation + 1)) == generation + 1:
        return generation
    directory.check_journal()
    last = directory.journal.last_generation()
    range_of_run = f"has generations 0 to {last}" if last >= 0 else "has no generation yet"
    raise GermlineError(
        f"generation {generation} is not in {directory.path}, which {range_of_run}; -1 is its start"
    )


def generation_of_source(
    source: str, directory: RunDirectory | None, generation: int | Literal["best"] | None
) -> int | None:
    """Return the requested generation of a run; None for its newest, and for a model."""
    if generation is None:
        return None
    if directory is None:
        raise GermlineError(
            f"generation: {source} is not a run directory, so it has no generation {generation}"
        )
    method = directory.config.method
    if not method.trains_center:
        raise GermlineError(
            f"generation: {source} has method.kind={method.kind}, whose best members are those of "
            "all generations: leave the generation out"
        )
    return find_generation(directory, generation)


def open_source(
    source: str, task: TaskConfig | None, overrides: Sequence[str]
) -> tuple[RunDirectory | None, Config]:
    """Return the run directory of a source, None for a model, and the config to use it with.

    A model has the dtype with which a run of it would begin on this machine.
    """
    path = Path(source)
    check_source(path)
    directory = RunDirectory.open(path) if (path / "run.json").exists() else None
    if directory is None:
        values = adapter_settings(path) if is_adapter(path) else {"model": str(source)}
        tasks = {} if task is None else {"task": task.model_dump()}
        date = read_export_facts(path).get("prompt_date")
        if date and not (task and task.prompt_date):
            overrides = (f"task.prompt_date={date}", *overrides)
        return None, with_dtype(load_config({**values, **tasks}, overrides))
    config = directory.config
    if task is None:
        return directory, load_config(config, overrides)
    defaults = {name: Config.model_fields[name].default for name in TRAINED_BY}
    task = task.model_copy(update={"prompt_date": task.prompt_date or config.task.prompt_date})
    judged = load_config(config.model_copy(update={"task": task, **defaults}), overrides)
    # The method determines the unit of sigma, in which voting members are perturbed.
    return directory, judged.model_copy(update={name: getattr(config, name) for name in TRAINED_BY})


def adapter_settings(folder: Path) -> dict[str, Any]:
    """Return the settings that load a PEFT adapter and the base model that it names."""
    adapter = read_adapter(folder)
    if not adapter.base:
        raise GermlineError(
            f"source: the adapter {folder} names no base model: write its name or folder into "
            "adapter_config.json as base_model_name_or_path"
        )
    model = "nano" if adapter.base == str(NANO_DIR) else adapter.base
    space = {"kind": "lora", "rank": adapter.rank, "alpha": adapter.alpha}
    return {"model": model, "space": {**space, "init_adapter": str(folder)}}


def load_engine(
    directory: RunDirectory | None,
    config: Config | None = None,
    *,
    generates: bool = True,
    generation: int | None = None,
    snapshots: bool = True,
) -> Engine:
    """Return an engine with the weights of a run, rebuilt from its journal and snapshots.

    Without `snapshots`, they are used only where the run followed gradients.
    Without a run, it has the model of the config, with the PEFT adapter that `space` names.
    """
    if directory is None:
        assert config is not None
        return make_engine(config, searched=getattr(config.space, "init_adapter", None) is not None)
    if generation is None:
        generation = newest_generation(directory)
    entries = directory.journal.read(generation + 1)
    engine = make_engine(
        config or directory.config, generates=generates, ancestors=directory.ancestors
    )
    restore(
        engine.weights,
        entries,
        directory.snapshots if snapshots or follows_gradients(entries) else None,
        directory.base_digest,
        generation,
        strategy_of_run(directory.config, engine.weights.dimension),
    )
    engine.refresh()
    return engine


def load_single_model(
    directory: RunDirectory | None,
    config: Config | None = None,
    *,
    generates: bool = True,
    generation: int | None = None,
) -> Engine:
    """Return an engine with one set of weights: of an ensemble, those of its best member."""
    engine = load_engine(directory, config, generates=generates, generation=generation)
    if directory and not directory.config.method.trains_center:
        update = method_of_run(directory, engine.weights.dimension).result_update()
        if update is not None:
            engine.apply(update)
    return engine


def newest_generation(directory: RunDirectory) -> int:
    """Return the newest generation that can be rebuilt; warn if the run has later ones."""
    directory.check_journal()
    entries = directory.journal.read()
    newest = last_restorable_generation(entries, directory.snapshots)
    if newest < len(entries) - 1:
        log.warning(
            "these are the weights of generation %d, of the newest snapshot: %s "
            "followed gradients, which seeds cannot repeat; `germline resume %s` runs them again",
            *(newest, count_of(len(entries) - 1 - newest, "later generations"), directory.path),
        )
    return newest


def writers(directory: RunDirectory, dimension: int) -> list[Perturbation | None]:
    """Return the members that generate the answers of a run: None (the center), or the voters."""
    if directory.config.method.trains_center:
        return [None]
    return [*method_of_run(directory, dimension).voting_members()] or [None]


def method_of_run(
    directory: RunDirectory, dimension: int, task: Task | None = None, generation: int | None = None
) -> Method:
    """Return the method of a run, which evaluates the center as it was after a generation.

    Where the center is theta alone, nothing is recalled: CMA-ES would compute its whole search
    again, and only on a machine that rounds alike.
    """
    config = directory.config
    method = make_method(config, strategy_of_run(config, dimension), task)
    if method.center_is_theta:
        return method
    entries = directory.journal.read()
    included = entries if generation is None else entries[: generation + 1]
    method.recall([entry.update for entry in included])
    return method


def _write_weights(engine: Engine, folder: Path, form: Form) -> None:
    with explain_write_errors(folder):
        if form == "adapter":
            engine.save_adapter(folder)
        else:
            engine.save_model(folder)
        # safetensors writes files that only their owner can read.
        readable = next(folder.glob("*config.json")).stat().st_mode
        for weights in folder.glob("*.safetensors"):
            weights.chmod(readable)


def _write_card(run: RunDirectory, folder: Path, last: int, library: str) -> None:
    """Write `germline.json` and the model card for the weights after a generation, or warn.

    `library` loads the weights: `transformers` or `peft`.
    """
    config = run.config
    scores = {row.score.generation: row.score for row in run.held_out() if row.score.n}
    facts = {
        "chat": sends_chats(config),
        "prompt_date": config.task.prompt_date,
        "model": config.model,
        "digest": run.journal.read()[last].digest if last >= 0 else run.base_digest,
        "generation": last,
        "held_out": {
            name: {"metric": score.metric, "mean": score.mean, "examples": score.n}
            for name, updates in (("start", 0), ("these weights", last + 1))
            if (score := scores.get(updates))
        },
        "germline": run.environment["versions"].get("germline"),
        "config": changed_settings(config),
    }
    plain = json.dumps(facts, default=str)
    facts = json.loads(plain, object_hook=_shortened)
    data = ModelCardData(
        base_model=config.model if HUB_NAME.fullmatch(config.model) else None,
        library_name=library,
        pipeline_tag="text-generation",
        tags=["germline"],
    )
    card = f"""---
{data.to_yaml()}
---

# {folder.name}

`{facts["model"]}`, trained by germline with `method={config.method.kind}` on `{config.task.title}`:
generation {last}, digest `{facts["digest"]}`. Held-out scores and all settings that are not the
defaults are in `{EXPORT_FACTS}`.
"""
    try:
        write_json(folder / EXPORT_FACTS, facts)
        write_atomically(folder / "README.md", card.encode("utf-8", "backslashreplace"))
    except (GermlineError, OSError) as error:
        log.warning("%s: the model card was not written: %s", folder, error)


def _shortened(values: dict[str, Any]) -> dict[str, Any]:
    """Shorten absolute paths to their last part, as an exported folder is often published."""
    paths = {
        name: Path(value).name
        for name, value in values.items()
        if isinstance(value, str) and "\n" not in value and Path(value).is_absolute()
    }
    return values | paths
