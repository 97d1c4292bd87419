"""What a run left, or a model can do: replay, export, evaluate, generate."""

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from germline.baselines.randopt import Ensemble, RandomSearch
from germline.checkpoint import restore, within_reach
from germline.config import Config, RandOpt, TaskBase, TaskConfig, load_config
from germline.config.settings import KINDS
from germline.evaluation import HELD_OUT_NOISE, held_out
from germline.fleet import LocalFleet
from germline.protocols import Closable, Engine, Fleet, Strategy, Task
from germline.record import RunDirectory
from germline.record.lines import refuse_unwritable, write_atomically, writing
from germline.run.arguments import choice_of, limit_of, path_of, texts_of
from germline.run.assembly import decoding, make_engine, make_graders, make_task
from germline.run.methods import make_method
from germline.strategies import make_strategy
from germline.types import (
    Completion,
    Decoding,
    Evaluation,
    Example,
    GermlineError,
    Perturbation,
    Score,
    Split,
)

log = logging.getLogger(__name__)

Form = Literal["adapter", "merged"]
"""How weights are written: a PEFT adapter (where one was trained), or a Hugging Face folder."""


TRAINED_BY = ("method", "choices")
"""Sections that say how weights were found; a task of one's own need not fit them."""


def replay(
    path: Path | str, generation: int, out: Path | str | None = None, form: Form | None = None
) -> str:
    """Rebuild a generation from base model and journal alone; return its verified digest.

    Args:
        path: the run directory.
        generation: the last update to include; -1 is the base model.
        out: the folder to write, if any.
        form: see `export`.

    Raises:
        GermlineError: the digest is not the one the journal recorded.
    """
    directory = RunDirectory.open(path_of("path", path))
    if form is not None and out is None:
        raise GermlineError(
            f"replay: {form} says how weights are written, so name the folder as well (--out)"
        )
    form = _form(directory.config, form)
    folder = None if out is None else _free(path_of("out", out))
    engine = make_engine(directory.config, plays=False, ancestors=directory.ancestors)
    digest = restore(
        engine.weights,
        directory.journal.read(),
        None,
        directory.base_digest,
        generation,
        _strategy(directory.config, engine.weights.dimension),
    )
    if folder is not None:
        engine.refresh()
        _write_weights(engine, folder, form)
    return digest


def export(path: Path | str, out: Path | str, form: Form | None = None) -> None:
    """Write the newest weights of a run: in fp32, what loads them writes the same tokens.

    Of a run that followed gradients and was killed, the newest are those of its newest snapshot.

    Args:
        path: the run directory.
        out: the folder to write.
        form: `merged` is a Hugging Face folder that plain `transformers` loads; `adapter` is one
            that plain `peft` loads. Default: the adapter where one was trained.

    Raises:
        GermlineError: the folder is taken, or there is no adapter to write.
    """
    folder = _free(path_of("out", out))
    directory = RunDirectory.open(path_of("path", path))
    form = _form(directory.config, form)
    _write_weights(_alone(directory, plays=False), folder, form)


def evaluate(
    source: str,
    task: TaskConfig | str | None = None,
    *,
    split: Split = "test",
    limit: int | None = None,
    overrides: Sequence[str] = (),
    out: Path | None = None,
) -> tuple[Score, Path]:
    """Score the weights of a run or a model on a task, and write every completion.

    Args:
        source: a run directory, or what `model` may be in a config.
        task: a config section or a short name; None plays the run's own task.
        split: which examples.
        limit: only the first so many of them.
        overrides: settings of engine, cell and graders.
        out: where the completions go; default: beside the run, or in the working directory.
    """
    choice_of("split", split, ("train", "test"))
    limit = limit_of(limit)
    file = None if out is None else path_of("out", out)
    if file is not None and file.is_dir():
        raise GermlineError(f"out: {file} is a folder; name the file the completions go to (--out)")
    if task is not None and not isinstance(task, TaskBase):
        task = load_config({"task": task}).task
    directory, config = _source(source, task, overrides)
    if directory is None and task is None:
        raise GermlineError(
            f"evaluate: {source} is no run directory, so name a task: task='countdown'"
        )
    played = make_task(config.task)
    examples = played.examples(split)[:limit]
    folder = directory.path if directory else Path()
    file = file or folder / f"completions-{played.name}-{split}.jsonl"
    refuse_unwritable(file)
    with ExitStack() as opened:
        engine = rebuilt(directory, config) if directory else make_engine(config, searched=False)
        opened.callback(let_go, engine)
        graders = opened.enter_context(make_graders(config, played))
        fleet: Fleet = LocalFleet(engine, graders, config.cell)
        if directory:
            fleet = _as_learnt(directory, fleet, played)
        luck = replace(decoding(config, played), noise_name=HELD_OUT_NOISE)
        updates = 1 + _newest(directory) if directory else 0
        score, evaluation = held_out(fleet, played, examples, luck, updates)
    _write_completions(file, evaluation, examples)
    return score, file


def generate(  # noqa: PLR0913 - all that a completion depends on
    source: str,
    prompts: Sequence[str],
    *,
    chat: bool = True,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    engine: str | None = None,
) -> list[Completion]:
    """Let the weights of a run or a model answer prompts.

    The run's own engine plays, or one of another kind with its defaults, such as `inprocess`.

    Raises:
        GermlineError: a setting is out of range, or the source cannot be loaded.
    """
    prompts = texts_of("prompts", prompts)
    if not prompts:
        return []
    sampling = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p}
    load_config({"task": sampling})
    asked = () if engine is None else (f"engine.kind={engine}",)
    directory, config = _source(source, None, asked)
    examples = [Example(i, prompt, "", chat) for i, prompt in enumerate(prompts)]
    settings = Decoding(max_new_tokens, temperature, top_p, noise_seed=seed)
    player = _alone(directory, config) if directory else make_engine(config, searched=False)
    try:
        return player.generate([None], examples, settings)[0]
    finally:
        let_go(player)


def settings_of(config: Config, overrides: Sequence[str], section: str) -> dict[str, Any]:
    """Return the settings of a run; of a section of which another kind is asked for, those it has.

    A kind that does not exist is left to whoever reads them.
    """
    values = config.model_dump()
    asked = dict(one.split("=", 1) for one in overrides if "=" in one)
    kind = asked.get(f"{section}.kind", values[section]["kind"])
    if kind != values[section]["kind"] and kind in KINDS[section]:
        known = KINDS[section][kind].model_fields
        kept = {name: value for name, value in values[section].items() if name in known}
        values[section] = {**kept, "kind": kind}
    return values


def let_go(engine: Engine) -> None:
    """End what an engine started, such as a server, and leave what it found as it was."""
    if isinstance(engine, Closable):
        engine.close()


def _source(
    source: str, task: TaskConfig | None, overrides: Sequence[str]
) -> tuple[RunDirectory | None, Config]:
    path = path_of("source", source)
    directory = RunDirectory.open(path) if (path / "run.json").exists() else None
    values: dict[str, Any] = {"model": str(source)}
    if directory:
        values = settings_of(directory.config, overrides, "engine")
    if task is not None:
        values["task"] = task.model_dump()
        # How a run was trained does not limit what it may be asked.
        values = {name: value for name, value in values.items() if name not in TRAINED_BY}
    return directory, load_config(values, overrides)


def rebuilt(directory: RunDirectory, config: Config | None = None, *, plays: bool = True) -> Engine:
    """Return an engine with the newest weights of a run that can be had."""
    engine = make_engine(config or directory.config, plays=plays, ancestors=directory.ancestors)
    entries = directory.journal.read()
    last = within_reach(entries, directory.snapshots)
    strategy = _strategy(directory.config, engine.weights.dimension)
    restore(engine.weights, entries, directory.snapshots, directory.base_digest, last, strategy)
    engine.refresh()
    return engine


def _newest(directory: RunDirectory) -> int:
    """Return the newest generation that can be had, and say where the run had come further."""
    entries = directory.journal.read()
    newest = within_reach(entries, directory.snapshots)
    if newest < len(entries) - 1:
        log.warning(
            "these are the weights of generation %d, of the newest snapshot: %d later generations "
            "followed gradients, which seeds cannot repeat; `germline resume %s` plays them again",
            *(newest, len(entries) - 1 - newest, directory.path),
        )
    return newest


def _alone(directory: RunDirectory, config: Config | None = None, *, plays: bool = True) -> Engine:
    """Return an engine with the weights that stand for a run alone: of voters, the best."""
    _newest(directory)
    engine = rebuilt(directory, config, plays=plays)
    method = directory.config.method
    if isinstance(method, RandOpt):
        engine.apply(_ensemble(directory, method, engine.weights.dimension).best())
    return engine


def writers(directory: RunDirectory, dimension: int) -> list[Perturbation | None]:
    """Return who writes the answers of a run: its centre (None), or the members that vote."""
    method = directory.config.method
    if isinstance(method, RandOpt):
        return [one.member for one in _ensemble(directory, method, dimension).kept] or [None]
    return [None]


def _ensemble(directory: RunDirectory, method: RandOpt, dimension: int) -> Ensemble:
    ensemble = Ensemble(method.keep)
    _recalled(directory, RandomSearch(method, _strategy(directory.config, dimension), ensemble))
    return ensemble


def _as_learnt(directory: RunDirectory, fleet: Fleet, task: Task) -> Fleet:
    """Let a fleet play as the centre of a run does, which may be more than its weights."""
    strategy = _strategy(directory.config, fleet.dimension())
    method = make_method(directory.config, strategy, fleet, task)
    if method.fleet is not fleet:
        _recalled(directory, method.strategy)
    return method.fleet


def _strategy(config: Config, dimension: int) -> Strategy:
    return make_strategy(
        config.search, run_seed=config.seed, generations=config.generations, dimension=dimension
    )


def _recalled(directory: RunDirectory, strategy: Strategy) -> None:
    strategy.recall([entry.update for entry in directory.journal.read()])


def _form(config: Config, form: Form | None) -> Form:
    """Say how a run's weights are written where nobody asked, and refuse what it does not have."""
    if form == "adapter" and not config.space.trains_an_adapter:
        raise GermlineError(
            f"this run has space.kind={config.space.kind} and so no adapter to write: write the "
            "whole model (--merged)"
        )
    return form or ("adapter" if config.space.trains_an_adapter else "merged")


def _write_weights(engine: Engine, folder: Path, form: Form) -> None:
    with writing(folder):
        if form == "adapter":
            engine.save_adapter(folder)
        else:
            engine.save_model(folder)


def _free(out: Path) -> Path:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise GermlineError(
            f"out: {out} exists and is not empty; choose a new or an empty folder (--out)"
        )
    refuse_unwritable(out)
    return out


def _write_completions(path: Path, evaluation: Evaluation, examples: Sequence[Example]) -> None:
    by_index = {example.index: example for example in examples}
    rows = [
        {
            "example": rollout.example,
            "prompt": by_index[rollout.example].prompt,
            "completion": rollout.completion.text,
            "answer": by_index[rollout.example].answer,
            **asdict(rollout.grade),
        }
        for rollout in evaluation.rollouts
    ]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode("utf-8", "backslashreplace"))
