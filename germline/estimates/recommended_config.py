"""Settings for a model and a task, each with its reason, that fit a machine.

The numbers are those of the recipes (`configs/recipes`) and of published runs (`configs/papers`);
what has to fit is computed by `estimate`. Sigma and learning rate are left to `auto`, which
measures them when the run starts: published values are for one model, space and dtype each.
docs/tuning.md explains the same choices.
"""

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch

from germline.config import Config, TaskBase, load_config
from germline.config.config_files import as_yaml
from germline.config.tasks import FileTask
from germline.estimates.estimate import Estimate, estimate
from germline.estimates.machine import Machine
from germline.estimates.model_shape import ModelShape
from germline.estimates.workload import text_lengths
from germline.evaluation.held_out import Z_95
from germline.protocols import Task
from germline.tasks import make_task
from germline.types import GermlineError

TINY_MODEL, LARGE_MODEL = 100e6, 1e9
"""Weights: below the first a generation takes seconds on a CPU; from the second on, members are
expensive."""

USUAL_POPULATION, LARGE_POPULATION = 128, 64
TINY_BATCH, USUAL_BATCH = 8, 16
TINY_GENERATIONS, USUAL_GENERATIONS = 50, 200
HELD_OUT, SCORES = 200, 10
LEAST_POPULATION, LEAST_BATCH, LEAST_GENERATIONS = 16, 4, 10
LEAST_HELD_OUT, LEAST_SCORES = 32, 2
SHARES = tuple(0.95**step for step in range(60))
"""Shares of the usual sizes, one after another, where the time of the run has a limit."""

NANO_LAYERS = "3"
"""Of the model nano; the template of `germline new task` and the shipped configs have the same."""

SMALLER = (
    {"microbatch.rows": 256},
    {"microbatch.rows": 128},
    {"engine.master_device": "host"},
    {"microbatch.rows": 32},
    {"microbatch.rows": 8},
    {"space.kind": "lora"},
)
"""Changes that need less memory, the smallest first, after half precision; those that help are kept
together."""

WIDTH = 96
GIGABYTE = 1e9


@dataclass(frozen=True)
class RecommendedSetting:
    """A setting by its dotted name, and why it has this value."""

    setting: str
    value: Any
    reason: str


@dataclass(frozen=True)
class RecommendedConfig:
    """The settings for a model and a task, and the memory that they need.

    Attributes:
        config: that the settings make.
        settings: in the order of the file.
        estimate: of the config on the machine that it is for.
    """

    config: Config
    settings: tuple[RecommendedSetting, ...]
    estimate: Estimate


def recommend(
    model: str,
    task: str,
    shape: ModelShape,
    machine: Machine,
    task_settings: Sequence[str] = (),
    is_short: Callable[[Config], bool] = lambda _: True,
) -> RecommendedConfig:
    """Return settings with which a model trains on a task on a machine.

    Args:
        model: as a config names it.
        task: likewise.
        shape: of the model.
        machine: that the settings have to fit.
        task_settings: overrides `task.*`, such as the columns of its rows.
        is_short: whether a config takes little enough time; all sizes are reduced alike until it
            does, or until they are the smallest ones.

    Raises:
        GermlineError: the task cannot be loaded, or no settings fit.
    """
    section = load_config({"model": model, "task": task}, task_settings).task
    made = make_task(section)
    for share in SHARES:
        settings = [
            RecommendedSetting("model", model, f"{shape.size} weights."),
            *_task_settings(task, section, made, task_settings),
            *_space_settings(model),
            *_search_settings(shape, share),
            *_size_settings(shape, made, share),
        ]
        if is_short(load_config(_nested(settings))):
            break
    return _fitted(settings, shape, machine, made)


def _fitted(
    settings: Sequence[RecommendedSetting], shape: ModelShape, machine: Machine, task: Task
) -> RecommendedConfig:
    """Change settings where the memory of the machine needs it.

    Raises:
        GermlineError: no settings fit.
    """
    texts = text_lengths(load_config(_nested(settings)), task)

    def found(changed: Sequence[RecommendedSetting]) -> RecommendedConfig:
        config = load_config(_nested(changed))
        return RecommendedConfig(config, tuple(changed), estimate(config, shape, texts, machine))

    half = "bfloat16" if machine.has_bfloat16 else "float16"
    if shape.config_dtype == torch.bfloat16 and not machine.has_bfloat16:
        reason = f"The model is stored in bfloat16, in which {machine.name} does not calculate."
        settings = _with_changes(settings, {"engine.dtype": half}, reason)
    best = found(settings)
    place = best.estimate.lacking
    if place is None:
        return best
    said = (
        f"{best.estimate.needed(place) / GIGABYTE:.1f} GB of {place} memory would be needed, and "
        f"{best.estimate.available(place) / GIGABYTE:.1f} GB are there"
    )
    reason = f"Needed to fit: without such changes, {said}."
    for change in ({"engine.dtype": half}, *SMALLER):
        tried = found(_with_changes(best.settings, change, reason))
        place = best.estimate.lacking
        if place and tried.estimate.needed(place) < best.estimate.needed(place):
            best = tried
    if best.estimate.fits:
        return best
    raise GermlineError(
        f"new config: {best.config.model} does not fit {machine.name}: {said}, and smaller "
        "settings do not suffice; use a smaller model or a larger machine"
    )


def config_text(found: RecommendedConfig, command: str, file: str, time: str = "") -> str:
    """Return the YAML of a recommended config, with its reasons as comments.

    Args:
        found: settings and their reasons.
        command: that wrote the file.
        file: its name.
        time: what is known of the time of the run.
    """
    need = found.estimate
    places = " and ".join(
        f"{need.needed(place) / GIGABYTE:.1f} GB of {place} memory" for place in need.places
    )
    head = (
        f"Written by: {command}",
        f"Estimated for {need.machine.name}: {places}{time}. `germline train {file} --dry-run` "
        "says more.",
    )
    lines = [line for text in head for line in _comment(text, "")]
    for section, group in groupby(found.settings, lambda one: one.setting.partition(".")[0]):
        lines += _section(section, list(group))
    return "\n".join(lines) + "\n"


def _task_settings(
    task: str, section: TaskBase, made: Task, given: Sequence[str]
) -> Iterator[RecommendedSetting]:
    """Yield the task in a line; with settings of its own as a section that has them."""
    reason = (
        f"{len(made.examples('train')):,} training examples and {len(made.examples('test')):,} "
        f"held-out ones; completions have at most {made.max_new_tokens} tokens "
        "(task.max_new_tokens). The time of a generation is nearly proportional to that."
    )
    if not given:
        yield RecommendedSetting("task", task, reason)
        return
    values = section.model_dump(mode="json")
    yield RecommendedSetting("task.kind", values["kind"], reason)
    if isinstance(section, FileTask):
        yield RecommendedSetting("task.path", values["path"], "The file of the task.")
    names = [setting.partition("=")[0].split(".")[1] for setting in given]
    for name in dict.fromkeys(names):
        if name not in ("kind", "path"):
            yield RecommendedSetting(f"task.{name}", values[name], "Given with the command.")


def _space_settings(model: str) -> Iterator[RecommendedSetting]:
    yield RecommendedSetting(
        "space.kind",
        "low_rank",
        "Members share the matrix products of the base model and add a correction of rank 1. "
        "`full` perturbs every weight, at one model copy per member; `lora` needs the least "
        "memory.",
    )
    if model == "nano":
        yield RecommendedSetting(
            "space.layers",
            NANO_LAYERS,
            "The last of nano's four layers: it changes the style of answers and keeps their "
            "facts. Another model needs no such line.",
        )


def _search_settings(shape: ModelShape, share: float) -> Iterator[RecommendedSetting]:
    usual = LARGE_POPULATION if shape.numbers >= LARGE_MODEL else USUAL_POPULATION
    yield RecommendedSetting(
        "strategy.population",
        2 * _part(usual // 2, share, LEAST_POPULATION // 2),
        "128 members below one billion weights and 64 above are usual; more members give a less "
        f"noisy update and take as much more time.{_reduced(share)}",
    )
    yield RecommendedSetting(
        "strategy.sigma",
        "auto",
        "Measured before the first generation, so that members differ from the model by a fixed KL "
        "divergence.",
    )
    yield RecommendedSetting(
        "strategy.learning_rate",
        "auto",
        "Follows the measured share of signal in the rewards. `germline probe` measures a pair of "
        "fixed numbers instead.",
    )


def _size_settings(shape: ModelShape, task: Task, share: float) -> Iterator[RecommendedSetting]:
    is_tiny = shape.numbers < TINY_MODEL
    batch = _part(TINY_BATCH if is_tiny else USUAL_BATCH, share, LEAST_BATCH)
    usual = TINY_GENERATIONS if is_tiny else USUAL_GENERATIONS
    generations = _part(usual, share, LEAST_GENERATIONS)
    every = max(1, generations // _part(SCORES, share, LEAST_SCORES))
    scored = min(len(task.examples("test")), _part(HELD_OUT, share, LEAST_HELD_OUT))
    yield RecommendedSetting(
        "batch_size",
        min(len(task.examples("train")), batch),
        "Examples per generation, the same for every member. More examples make the update less "
        f"noisy and cost as much as more members; auto needs at least 2.{_reduced(share)}",
    )
    yield RecommendedSetting(
        "generations",
        generations,
        f"`germline resume RUN generations=...` continues a finished run.{_reduced(share)}",
    )
    yield RecommendedSetting(
        "held_out.every",
        every,
        f"{math.ceil(generations / every) + 1} scores in all, with those before and after the run.",
    )
    yield RecommendedSetting(
        "held_out.examples",
        scored,
        f"The 95 % interval of a share over {scored} examples is up to "
        f"{100 * min(1, Z_95 / math.sqrt(scored)):.0f} points wide; 4 times the examples halve it.",
    )


def _part(usual: int, share: float, least: int) -> int:
    return max(least, round(usual * share))


def _reduced(share: float) -> str:
    return " Reduced to fit the time (--minutes)." if share < 1 else ""


def _with_changes(
    settings: Sequence[RecommendedSetting], changes: dict[str, Any], reason: str
) -> list[RecommendedSetting]:
    """Return the settings with other values, which have the same reason."""
    kept = [
        replace(one, value=changes[one.setting], reason=reason) if one.setting in changes else one
        for one in settings
    ]
    names = {one.setting for one in settings}
    added = (item for item in changes.items() if item[0] not in names)
    return [*kept, *(RecommendedSetting(name, value, reason) for name, value in added)]


def _nested(settings: Sequence[RecommendedSetting]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for one in settings:
        section, _, name = one.setting.partition(".")
        if name:
            values.setdefault(section, {})[name] = one.value
        else:
            values[section] = one.value
    return values


def _section(section: str, group: Sequence[RecommendedSetting]) -> Iterator[str]:
    yield ""
    if group[0].setting == section:
        yield from _comment(group[0].reason, "")
        yield _line(section, group[0].value, "")
        return
    yield f"{section}:"
    for one in group:
        yield from _comment(one.reason, "  ")
        yield _line(one.setting.partition(".")[2], one.value, "  ")


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}# {line}" for line in textwrap.wrap(text, WIDTH - len(indent))]


def _line(name: str, value: object, indent: str) -> str:
    if isinstance(value, dict | list):  # in one line, as a setting is written
        shown = as_yaml(
            value, sort_keys=True, width=10_000, allow_unicode=True, default_flow_style=True
        ).strip()
        return f"{indent}{name}: {shown}"
    return indent + as_yaml({name: value}, width=10_000, allow_unicode=True).strip()
