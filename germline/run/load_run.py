"""Open what a run left: its directory, its config, and an engine with its newest weights."""

import logging
from collections.abc import Sequence
from typing import Any

from germline.baselines.randopt import Ensemble, RandomSearch
from germline.checkpoint import last_restorable_generation, restore
from germline.config import Config, RandOpt, TaskConfig, load_config
from germline.fleet.engine_queries import DimensionQuery
from germline.protocols import Closable, Engine, Fleet, Strategy, Task
from germline.record import RunDirectory
from germline.registry import sections
from germline.run.build_method import make_method
from germline.run.build_parts import make_engine
from germline.run.validate_args import validate_path
from germline.strategies import make_strategy
from germline.types import Perturbation

log = logging.getLogger(__name__)

TRAINED_BY = ("method", "prompt_search")
"""Sections that say how weights were found; a task of one's own need not fit them."""


def open_source(
    source: str, task: TaskConfig | None, overrides: Sequence[str]
) -> tuple[RunDirectory | None, Config]:
    """Return the run directory of a source, None for a model, and the config to use it with."""
    path = validate_path("source", source)
    directory = RunDirectory.open(path) if (path / "run.json").exists() else None
    values: dict[str, Any] = {"model": str(source)}
    if directory:
        values = settings_for(directory.config, overrides, "engine")
    if task is not None:
        values["task"] = task.model_dump()
        # How a run was trained does not limit what it may be asked.
        values = {name: value for name, value in values.items() if name not in TRAINED_BY}
    return directory, load_config(values, overrides)


def settings_for(config: Config, overrides: Sequence[str], section: str) -> dict[str, Any]:
    """Return the settings of a run; of a section of which another kind is asked for, those it has.

    A kind that does not exist is left to whoever reads them.
    """
    values = config.model_dump()
    asked = dict(one.split("=", 1) for one in overrides if "=" in one)
    kind = asked.get(f"{section}.kind", values[section]["kind"])
    if kind != values[section]["kind"] and kind in sections(section):
        known = sections(section)[kind].model_fields
        kept = {name: value for name, value in values[section].items() if name in known}
        values[section] = {**kept, "kind": kind}
    return values


def close_engine(engine: Engine) -> None:
    """End what an engine started, such as a server, and leave what it found as it was."""
    if isinstance(engine, Closable):
        engine.close()


def load_engine(
    directory: RunDirectory, config: Config | None = None, *, generates: bool = True
) -> Engine:
    """Return an engine with the newest weights of a run that can be had."""
    engine = make_engine(
        config or directory.config, generates=generates, ancestors=directory.ancestors
    )
    entries = directory.journal.read()
    last = last_restorable_generation(entries, directory.snapshots)
    strategy = strategy_of_run(directory.config, engine.weights.dimension)
    restore(engine.weights, entries, directory.snapshots, directory.base_digest, last, strategy)
    engine.refresh()
    return engine


def newest_generation(directory: RunDirectory) -> int:
    """Return the newest generation that can be had, and say where the run had come further."""
    entries = directory.journal.read()
    newest = last_restorable_generation(entries, directory.snapshots)
    if newest < len(entries) - 1:
        log.warning(
            "these are the weights of generation %d, of the newest snapshot: %d later generations "
            "followed gradients, which seeds cannot repeat; `germline resume %s` plays them again",
            *(newest, len(entries) - 1 - newest, directory.path),
        )
    return newest


def load_single_model(
    directory: RunDirectory, config: Config | None = None, *, generates: bool = True
) -> Engine:
    """Return an engine with the weights that stand for a run alone: of voters, the best."""
    newest_generation(directory)
    engine = load_engine(directory, config, generates=generates)
    method = directory.config.method
    if isinstance(method, RandOpt):
        engine.apply(_ensemble(directory, method, engine.weights.dimension).best())
    return engine


def writers(directory: RunDirectory, dimension: int) -> list[Perturbation | None]:
    """Return who writes the answers of a run: its center (None), or the members that vote."""
    method = directory.config.method
    if isinstance(method, RandOpt):
        return [one.member for one in _ensemble(directory, method, dimension).kept] or [None]
    return [None]


def _ensemble(directory: RunDirectory, method: RandOpt, dimension: int) -> Ensemble:
    ensemble = Ensemble(method.ensemble_size)
    _recalled(
        directory, RandomSearch(method, strategy_of_run(directory.config, dimension), ensemble)
    )
    return ensemble


def fleet_of_run(directory: RunDirectory, fleet: Fleet, task: Task) -> Fleet:
    """Let a fleet play as the center of a run does, which may be more than its weights."""
    strategy = strategy_of_run(directory.config, fleet.query(DimensionQuery()))
    method = make_method(directory.config, strategy, fleet, task)
    if method.fleet is not fleet:
        _recalled(directory, method.strategy)
    return method.fleet


def strategy_of_run(config: Config, dimension: int) -> Strategy:
    """Build the strategy of a run, which replaying needs where it draws the updates itself."""
    return make_strategy(
        config.search, run_seed=config.seed, generations=config.generations, dimension=dimension
    )


def _recalled(directory: RunDirectory, strategy: Strategy) -> None:
    strategy.recall([entry.update for entry in directory.journal.read()])
