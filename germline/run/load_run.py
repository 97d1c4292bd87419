"""Open a run: its directory, its config, and an engine with its newest weights."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from germline.checkpoint import last_restorable_generation, restore
from germline.config import Config, TaskConfig, load_config
from germline.methods.method import Method, make_method
from germline.nano import NANO_DIR
from germline.protocols import Closable, Engine, Strategy, Task
from germline.record import RunDirectory
from germline.record.best_generation import best_score
from germline.record.run_paths import check_source
from germline.run.build_parts import make_engine
from germline.spaces.peft_files import is_adapter, read_adapter
from germline.strategies import make_strategy
from germline.types import GermlineError, Perturbation

log = logging.getLogger(__name__)

TRAINED_BY = ("method", "prompt_search", "batch_size")
"""Settings of training alone; they are not judged when the run is evaluated on another task."""


def open_source(
    source: str, task: TaskConfig | None, overrides: Sequence[str]
) -> tuple[RunDirectory | None, Config]:
    """Return the run directory of a source, None for a model, and the config to use it with.

    Raises:
        GermlineError: the source names a run that is not there, or a setting is wrong.
    """
    path = Path(source)
    check_source(path)
    directory = RunDirectory.open(path) if (path / "run.json").exists() else None
    if directory is None:
        values = adapter_settings(path) if is_adapter(path) else {"model": str(source)}
        tasks = {} if task is None else {"task": task.model_dump()}
        return None, load_config({**values, **tasks}, overrides)
    config = directory.config
    if task is None:
        return directory, load_config(config, overrides)
    defaults = {name: Config.model_fields[name].default for name in TRAINED_BY}
    judged = load_config(config.model_copy(update={"task": task, **defaults}), overrides)
    # The method determines the unit of sigma, in which voting members are perturbed.
    return directory, judged.model_copy(update={name: getattr(config, name) for name in TRAINED_BY})


def adapter_settings(folder: Path) -> dict[str, Any]:
    """Return the settings that load a PEFT adapter and the base model that it names.

    Raises:
        GermlineError: the adapter is damaged, or names no base model.
    """
    adapter = read_adapter(folder)
    if not adapter.base:
        raise GermlineError(
            f"source: the adapter {folder} names no base model: write its name or folder into "
            "adapter_config.json as base_model_name_or_path"
        )
    model = "nano" if adapter.base == str(NANO_DIR) else adapter.base
    space = {"kind": "lora", "rank": adapter.rank, "alpha": adapter.alpha}
    return {"model": model, "space": {**space, "init_adapter": str(folder)}}


def close_engine(engine: Engine) -> None:
    """Stop the processes that an engine started, such as a server; a running server is restored."""
    if isinstance(engine, Closable):
        engine.close()


def find_generation(directory: RunDirectory, generation: int | Literal["best"]) -> int:
    """Return a generation of a run, -1 for its start; `best` is that before the best score.

    Raises:
        GermlineError: the run has no such generation, or `best` has no held-out score to use.
    """
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
    last = directory.journal.last_generation()
    if -1 <= generation <= last:
        return generation
    directory.check_journal()
    range_of_run = f"has generations 0 to {last}" if last >= 0 else "has no generation yet"
    raise GermlineError(
        f"generation {generation} is not in {directory.path}, which {range_of_run}; -1 is its start"
    )


def load_engine(
    directory: RunDirectory,
    config: Config | None = None,
    *,
    generates: bool = True,
    generation: int | None = None,
) -> Engine:
    """Return an engine with the weights of a run.

    Args:
        directory: of the run.
        config: settings to load the engine with; default: those of the run.
        generates: whether the engine generates, or only holds the master weights.
        generation: the last update to include; default: the newest that can be rebuilt.

    Raises:
        GermlineError: the weights cannot be rebuilt, or the newest are asked for and the journal
            lost some of its lines.
    """
    if generation is None:
        directory.check_journal()
    engine = make_engine(
        config or directory.config, generates=generates, ancestors=directory.ancestors
    )
    entries = directory.journal.read()
    last = (
        last_restorable_generation(entries, directory.snapshots)
        if generation is None
        else generation
    )
    strategy = strategy_of_run(directory.config, engine.weights.dimension)
    restore(engine.weights, entries, directory.snapshots, directory.base_digest, last, strategy)
    engine.refresh()
    return engine


def newest_generation(directory: RunDirectory) -> int:
    """Return the newest generation that can be rebuilt; warn if the run has later ones."""
    entries = directory.journal.read()
    newest = last_restorable_generation(entries, directory.snapshots)
    if newest < len(entries) - 1:
        log.warning(
            "these are the weights of generation %d, of the newest snapshot: %d later generations "
            "followed gradients, which seeds cannot repeat; `germline resume %s` runs them again",
            *(newest, len(entries) - 1 - newest, directory.path),
        )
    return newest


def load_single_model(
    directory: RunDirectory,
    config: Config | None = None,
    *,
    generates: bool = True,
    generation: int | None = None,
) -> Engine:
    """Return an engine with one set of weights for a run: of an ensemble, its best member."""
    if generation is None:
        newest_generation(directory)
    engine = load_engine(directory, config, generates=generates, generation=generation)
    if generation is None and not directory.config.method.trains_center:
        update = method_of_run(directory, engine.weights.dimension).result_update()
        if update is not None:
            engine.apply(update)
    return engine


def writers(directory: RunDirectory, dimension: int) -> list[Perturbation | None]:
    """Return the members that generate the answers of a run: None (the center), or the voters."""
    if directory.config.method.trains_center:
        return [None]
    return [*method_of_run(directory, dimension).voting_members()] or [None]


def count_voters(directory: RunDirectory) -> int:
    """Return the number of members that answer by vote; 0 where the center answers."""
    return sum(member is not None for member in writers(directory, dimension=0))


def method_of_run(
    directory: RunDirectory,
    dimension: int,
    task: Task | None = None,
    generation: int | None = None,
) -> Method:
    """Return the method of a run, which evaluates the center as it was after a generation.

    Where the center is theta alone, nothing is recalled: CMA-ES would compute its whole search
    again, and only on a machine that rounds alike.

    Args:
        directory: of the run.
        dimension: number of searched numbers.
        task: the task to evaluate on; None where nothing is evaluated.
        generation: the last update to include; default: all.
    """
    config = directory.config
    method = make_method(config, strategy_of_run(config, dimension), task)
    if method.center_is_theta:
        return method
    entries = directory.journal.read()
    included = entries if generation is None else entries[: generation + 1]
    method.recall([entry.update for entry in included])
    return method


def strategy_of_run(config: Config, dimension: int) -> Strategy:
    """Build the strategy of a run; replaying needs it if the strategy recomputes its updates."""
    return make_strategy(
        config.search, run_seed=config.seed, generations=config.generations, dimension=dimension
    )
