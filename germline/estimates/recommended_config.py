"""Settings for a model and a task, each with its reason.

The numbers are those of the recipes (`configs/recipes`) and of published runs (`configs/papers`);
`estimate` computes what has to fit. Sigma and learning rate are left to `auto`, which
measures them when the run starts: published values are for one model, space and dtype each.
docs/tuning.md explains the same choices.
"""

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from germline.config import Config, TaskBase, load_config
from germline.config.config_files import as_yaml
from germline.config.row_tasks import FileTask
from germline.estimates.machine import Machine, with_dtype
from germline.estimates.memory import LESS_MEMORY, Estimate, estimate
from germline.estimates.sizes import ModelShape, text_lengths
from germline.protocols import Task
from germline.tasks import make_task

TINY_MODEL, LARGE_MODEL = 100e6, 1e9
"""Weights: below the first a generation takes seconds on a CPU; from the second on, members are
expensive."""

SHARES = tuple(0.95**step for step in range(60))
"""Shares of the usual sizes, one after another, where the time of the run has a limit."""

WIDTH = 96
GIGABYTE = 1e9


class Choice(NamedTuple):
    """The value of a setting, and why it has this value."""

    value: Any
    reason: str


Settings = dict[str, Choice]
"""Settings by their dotted names, in the order of the file."""


@dataclass(frozen=True)
class RecommendedConfig:
    """The settings for a model and a task, the config that they make, and its memory."""

    config: Config
    settings: Settings
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
        machine: whose memory is compared with what is needed.
        task_settings: overrides `task.*`, such as the columns of its rows.
        is_short: whether a config takes little enough time; all sizes are reduced alike until it
            does, or until they are the smallest ones.
    """
    section = load_config({"model": model, "task": task}, task_settings).task
    made = make_task(section)
    fixed = {
        "model": Choice(model, f"{shape.size} weights."),
        **_task_settings(task, section, made, task_settings),
        "space.kind": Choice(
            "low_rank", "`full` needs a model copy per member, `lora` the least memory."
        ),
    }
    if model == "nano":
        fixed["space.layers"] = Choice("3", "The last of nano's four layers.")
    for share in SHARES:
        settings = fixed | _search_settings(shape, made, share)
        if is_short(_config(settings)):
            break
    if shape.config_dtype == torch.bfloat16 and not machine.has_bfloat16:
        reason = f"The model is stored in bfloat16, in which {machine.name} does not calculate."
        settings["engine.dtype"] = Choice("float16", reason)
    config = _config(settings)
    served = config if machine.on_gpu else with_dtype(config, shape)
    needed = estimate(served, shape, text_lengths(config, made), machine)
    return RecommendedConfig(config, settings, needed)


def config_text(found: RecommendedConfig, command: str, file: str, time: str = "") -> str:
    """Return the YAML of a recommended config, with its reasons as comments.

    `time` says what is known of the time of the run.
    """
    need = found.estimate
    places = " and ".join(
        f"{need.needed(place) / GIGABYTE:.1f} GB of {place} memory" for place in need.places
    )
    text = _comment(f"Written by: {command}") + _comment(
        f"Estimated for {need.machine.name}: {places}{time}. {too_large(need)}"
        f"`germline train {file} --dry-run` says more."
    )
    sections: dict[str, str] = {}
    for setting, (value, reason) in found.settings.items():
        section, _, name = setting.partition(".")
        line = as_yaml({name or section: value}, width=10_000, allow_unicode=True)
        if name:
            line = textwrap.indent(_comment(reason, "  ") + line, "  ")
            sections[section] = sections.get(section, f"{section}:\n") + line
        else:
            sections[section] = _comment(reason) + line
    return "\n".join([text, *sections.values()])


def too_large(need: Estimate) -> str:
    """Return a sentence that says what needs less memory; empty of what fits."""
    if (place := need.lacking) is None:
        return ""
    return (
        f"Only {need.available(place) / GIGABYTE:.1f} GB of {place} memory are there: less is "
        f"needed by {LESS_MEMORY}. "
    )


def _comment(text: str, indent: str = "") -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(text, WIDTH - len(indent)))


def _config(settings: Settings) -> Config:
    values: dict[str, Any] = {}
    for setting, choice in settings.items():
        *section, name = setting.split(".")
        inner = values.setdefault(section[0], {}) if section else values
        inner[name] = choice.value
    return load_config(values)


def _task_settings(task: str, section: TaskBase, made: Task, given: Sequence[str]) -> Settings:
    """Return the task in a line; with settings of its own as a section that has them."""
    reason = (
        f"{len(made.examples('train')):,} training examples and {len(made.examples('test')):,} "
        f"held-out ones; completions have at most {made.max_new_tokens} tokens "
        "(task.max_new_tokens), to which the time of a generation is nearly proportional."
    )
    if not given:
        return {"task": Choice(task, reason)}
    values = section.model_dump(mode="json")
    settings = {"task.kind": Choice(values["kind"], reason)}
    names = [setting.partition("=")[0].split(".")[1] for setting in given]
    for name in ["path", *names] if isinstance(section, FileTask) else names:
        why = "The file of the task." if name == "path" else "Given with the command."
        settings.setdefault(f"task.{name}", Choice(values[name], why))
    return settings


def _search_settings(shape: ModelShape, task: Task, share: float) -> Settings:
    """Return the settings of the search, and its sizes as a share of the usual ones."""

    def part(usual: int, least: int) -> int:
        return max(least, round(usual * share))

    is_tiny = shape.numbers < TINY_MODEL
    population = 64 if shape.numbers >= LARGE_MODEL else 128
    batch = part(8 if is_tiny else 16, 4)
    generations = part(50 if is_tiny else 200, 10)
    every = max(1, generations // part(10, 2))
    scored = min(len(task.examples("test")), part(200, 32))
    reduced = " Reduced to fit the time (--minutes)." if share < 1 else ""
    return {
        "strategy.population": Choice(
            2 * part(population // 2, 8),
            "Usual are 128 members below one billion weights and 64 above; more give a less noisy "
            f"update.{reduced}",
        ),
        "strategy.sigma": Choice("auto", "Members differ from the model by a fixed KL divergence."),
        "strategy.learning_rate": Choice("auto", "Follows the share of signal in the rewards."),
        "batch_size": Choice(
            min(len(task.examples("train")), batch),
            f"Examples per generation, the same for every member; at least 2 for auto.{reduced}",
        ),
        "generations": Choice(
            generations, f"`germline resume RUN generations=...` continues a finished run.{reduced}"
        ),
        "held_out.every": Choice(
            every,
            f"{math.ceil(generations / every) + 1} scores in all, with those before and after.",
        ),
        "held_out.examples": Choice(scored, "Four times as many halve the intervals."),
    }
