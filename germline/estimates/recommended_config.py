"""Settings for a model and a task, each with its reason, that fit a machine.

The numbers are those of the recipes (`configs/recipes`) and of published runs (`configs/papers`);
what has to fit is computed by `estimate`. Sigma and learning rate are left to `auto`, which
measures them when the run starts: published values are for one model, space and dtype each.
docs/tuning.md explains the same choices.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import yaml

from germline.config import Config, TaskBase, load_config
from germline.config.schedules import CALIBRATION_PAIRS
from germline.config.tasks import FileTask
from germline.estimates.estimate import Estimate, estimate, what_fits
from germline.estimates.hardware import Hardware
from germline.estimates.here import texts_here
from germline.estimates.memory import Place
from germline.estimates.model_shape import ModelShape
from germline.estimates.workload import TextLengths
from germline.evaluation.held_out import Z_95
from germline.protocols import Task
from germline.report import text_format
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
LEAST_PAIRS, LEAST_HELD_OUT, LEAST_SCORES = 2, 32, 2
SHARES = tuple(0.95**step for step in range(60))
"""Shares of the usual sizes, one after another, where the time of the run has a limit."""

NANO_LAYERS = "3"
"""Of the model nano; the template of `germline new task` and the shipped configs have the same."""

WIDTH = 96
PLACES: tuple[Place, ...] = ("device", "host")
GIGABYTE = 1e9


@dataclass(frozen=True)
class RecommendedSetting:
    """A setting by its dotted name, and why it has this value."""

    setting: str
    value: Any
    reason: str


@dataclass(frozen=True)
class RecommendedConfig:
    """The settings for a model and a task, and what they need.

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
    machine: Hardware,
    task_settings: Sequence[str] = (),
    minutes: float | None = None,
) -> RecommendedConfig:
    """Return settings with which a model trains on a task on a machine.

    Args:
        model: as a config names it.
        task: likewise.
        shape: of the model.
        machine: that the settings have to fit.
        task_settings: overrides `task.*`, such as the columns of its rows.
        minutes: that the run takes at most; all sizes are reduced alike to fit.

    Raises:
        GermlineError: the task cannot be loaded, or no settings fit.
    """
    section = load_config({"model": model, "task": task}, task_settings).task
    made = make_task(section)
    texts: TextLengths | None = None
    for share in SHARES:
        settings = list(_choice(model, task, shape, section, made, task_settings, share))
        config = load_config(_nested(settings))
        # Prompts are measured once; the longest prompt of a smaller batch is not longer.
        texts = replace(
            texts or texts_here(config, made),
            examples=config.batch_size,
            held_out=config.held_out.examples,
        )
        found = _fitted(settings, shape, machine, texts)
        if minutes is None or found.estimate.run_s <= 60 * minutes:
            return found
    least = found.config
    raise GermlineError(
        f"new config: --minutes={minutes:g} is too short: {least.generations} generations of "
        f"{least.strategy.population} members x {least.batch_size} examples take "
        f"{text_format.duration(found.estimate.run_s)}; allow that time, or use a smaller model or "
        "a smaller task.max_new_tokens"
    )


def _fitted(
    settings: list[RecommendedSetting], shape: ModelShape, machine: Hardware, texts: TextLengths
) -> RecommendedConfig:
    """Change settings where the memory of the machine needs it.

    Raises:
        GermlineError: no settings fit.
    """
    if machine.lacks(shape.config_dtype):
        reason = f"The model is stored in bfloat16, in which a {machine.name} does not compute."
        settings.append(RecommendedSetting("engine.dtype", "float16", reason))
    config = load_config(_nested(settings))
    found = estimate(config, shape, texts, machine)
    if not found.fits:
        remedy = what_fits(config, shape, texts, machine)
        if not remedy:
            raise GermlineError(
                f"new config: {config.model} fits {machine.name} neither in half precision nor "
                "with masters on the host, small microbatches and space=lora together: use a "
                "smaller model or a larger machine (--hardware)"
            )
        settings = _with_remedy(settings, remedy, found)
        config = load_config(_nested(settings))
        found = estimate(config, shape, texts, machine)
    return RecommendedConfig(config, tuple(settings), found)


def config_text(found: RecommendedConfig, command: str, file: str) -> str:
    """Return the YAML of a recommended config, with its reasons as comments."""
    need, seconds = found.estimate, found.estimate.seconds
    places = [
        f"{need.needed(place) / GIGABYTE:.1f} GB of {place} memory"
        for place in PLACES
        if need.needed(place)
    ]
    head = (
        f"Written by: {command}",
        f"Estimated for {need.machine.name}: {' and '.join(places)}; "
        f"{text_format.seconds(seconds.total)} per generation, {text_format.duration(need.run_s)} "
        "for the run with its calibration and held-out scores, if all texts run to their full "
        f"length ({need.machine.source_of_times}); a snapshot has "
        f"{need.snapshot_bytes / GIGABYTE:.2g} GB. `germline train {file} --dry-run` says more.",
    )
    lines = [line for text in head for line in _comment(text, "")]
    for section, group in groupby(found.settings, lambda one: one.setting.partition(".")[0]):
        lines += _section(section, list(group))
    return "\n".join(lines) + "\n"


def _choice(
    model: str,
    task: str,
    shape: ModelShape,
    section: TaskBase,
    made: Task,
    task_settings: Sequence[str],
    share: float,
) -> Iterator[RecommendedSetting]:
    """Yield the settings with a share of the usual sizes, whatever fits."""
    examples, held_out = len(made.examples("train")), len(made.examples("test"))
    is_tiny, is_large = shape.numbers < TINY_MODEL, shape.numbers >= LARGE_MODEL
    population = LARGE_POPULATION if is_large else USUAL_POPULATION
    population = 2 * _part(population // 2, share, LEAST_POPULATION // 2)
    generations = _part(
        TINY_GENERATIONS if is_tiny else USUAL_GENERATIONS, share, LEAST_GENERATIONS
    )
    batch = min(examples, _part(TINY_BATCH if is_tiny else USUAL_BATCH, share, LEAST_BATCH))
    pairs = _part(CALIBRATION_PAIRS, share, LEAST_PAIRS)
    reduced = " Reduced to fit the time (--minutes)." if share < 1 else ""
    yield RecommendedSetting("model", model, f"{shape.size} weights.")
    yield from _task_settings(
        task,
        section,
        task_settings,
        f"{examples:,} training examples and {held_out:,} held-out ones; completions have at most "
        f"{made.max_new_tokens} tokens (task.max_new_tokens). The time of a generation is nearly "
        "proportional to that.",
    )
    yield RecommendedSetting(
        "space.kind",
        "low_rank",
        "Members share the matrix products of the base model and add a correction of rank 1, so a "
        "whole population is evaluated in few batches. `full` perturbs every weight as Qiu et al. "
        "do, at one model copy per member; `lora` needs the least memory.",
    )
    if model == "nano":
        yield RecommendedSetting(
            "space.layers",
            NANO_LAYERS,
            "The last of nano's four layers: it changes the style of answers and keeps their "
            "facts. Another model needs no such line.",
        )
    yield RecommendedSetting(
        "strategy.population",
        population,
        "As in the recipes: 128 members below one billion weights, 64 above. Published runs have "
        "30 (Qiu et al., space full) to 1024 (EGGROLL); more members are a less noisy update and "
        f"as much more time.{reduced}",
    )
    yield RecommendedSetting(
        "strategy.sigma",
        "auto" if pairs == CALIBRATION_PAIRS else {"kind": "auto", "pairs": pairs},
        "Measured before the first generation so that members differ from the model by a fixed KL "
        "divergence. Published values (0.001 for dense noise) hold for one model, space and dtype.",
    )
    yield RecommendedSetting(
        "strategy.learning_rate",
        "auto",
        "Follows the measured share of signal in the rewards. `germline probe` measures a pair of "
        "fixed numbers instead.",
    )
    yield RecommendedSetting(
        "batch_size",
        batch,
        "Examples per generation, the same for every member. More examples make the update less "
        f"noisy and cost as much as more members; auto needs at least 2.{reduced}",
    )
    yield RecommendedSetting(
        "generations",
        generations,
        f"A start; `germline resume RUN generations=...` continues a finished run.{reduced}",
    )
    yield RecommendedSetting(
        "held_out.every",
        every := max(1, generations // _part(SCORES, share, LEAST_SCORES)),
        f"{math.ceil(generations / every) + 1} scores in all, with those before and after the run.",
    )
    yield RecommendedSetting(
        "held_out.examples",
        scored := min(held_out, _part(HELD_OUT, share, LEAST_HELD_OUT)),
        f"The 95 % interval of a share over {scored} examples is up to "
        f"{100 * min(1, Z_95 / math.sqrt(scored)):.0f} points wide; 4 times the examples halve it.",
    )


def _part(usual: int, share: float, least: int) -> int:
    return max(least, round(usual * share))


def _task_settings(
    task: str, section: TaskBase, given: Sequence[str], reason: str
) -> Iterator[RecommendedSetting]:
    """Yield the task in a line; with settings of its own as a section that has them."""
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


def _with_remedy(
    settings: Sequence[RecommendedSetting], remedy: Sequence[str], before: Estimate
) -> list[RecommendedSetting]:
    """Change the settings that do not fit to those that do."""
    place: Place = "device" if before.needed("device") > before.available("device") else "host"
    reason = (
        f"Needed to fit: without it, {before.needed(place) / GIGABYTE:.1f} GB of {place} memory "
        f"would be needed, and {before.available(place) / GIGABYTE:.1f} GB are there."
    )
    changed = {}
    for override in remedy:
        name, _, value = override.partition("=")
        name = "space.kind" if name == "space" else name
        changed[name] = RecommendedSetting(name, yaml.safe_load(value), reason)
    kept = [changed.pop(one.setting, one) for one in settings]
    return [*kept, *changed.values()]


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
        shown = yaml.safe_dump(
            value, width=10_000, allow_unicode=True, default_flow_style=True
        ).strip()
        return f"{indent}{name}: {shown}"
    return indent + yaml.safe_dump({name: value}, width=10_000, allow_unicode=True).strip()
