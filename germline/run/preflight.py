"""What a run refuses before it begins: a training and its dry run call the same checks.

`check_run` needs no model, and `check_custom_reward` the graders.

A check refuses what would give a wrong result, lose work, or certainly not fit this machine. How
much memory a generation needs on top of the weights is an estimate, which `germline train
--dry-run` prints.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from germline.config import Config, CustomTask, Ray, Vllm
from germline.config.row_tasks import FileTask
from germline.config.scorers import HttpScorer
from germline.errors import count_of
from germline.estimates.machine import available_bytes
from germline.methods.method import check_task
from germline.protocols import EpisodeTask, Task
from germline.run.model_prompts import check_prompt_lengths
from germline.run.trackers import check_wandb_installed
from germline.scorers.http_service import request_headers
from germline.scorers.scored_graders import Graders
from germline.types import Example, GermlineError

log = logging.getLogger(__name__)

MEMORY_SHARE = 0.8
"""Share of the available memory that engines may take; other programs need the rest."""

ENGINE_BYTES = 196e6
"""Memory of an engine process with the toy model, the least that there is (measured on Linux)."""

QUICK = 4
"""Number of examples with which a custom reward is tried."""

LONGEST_SHOWN = 60
"""Characters of a completion that a remark shows."""

CERTAIN = ("weights", "fp32 masters", "optimizer", "stored weights")
"""Parts of the memory that a run holds from its first generation to its last."""


def check_run(config: Config, task: Task) -> None:
    """Refuse settings that this machine or the task cannot have, memory for the weights apart."""
    check_episode_rewards(config, task)
    check_task(config, task)
    if both := prompts_in_both(task):
        log.warning(
            "held-out prompts that are also trained on: %d, such as %s, so the held-out score "
            "tells less of new prompts: hold others out",
            *(len(both), short_text(both[0])),
        )
    available = available_bytes()
    most = max(1, int(MEMORY_SHARE * available / ENGINE_BYTES))
    if config.fleet.engines > most and not config.fleet.is_elsewhere:
        raise GermlineError(
            f"fleet.engines={config.fleet.engines}: this machine has {available / 1e9:.1f} GB of "
            f"memory available; set at most fleet.engines={most}"
        )
    if isinstance(config.fleet, Ray):
        if find_spec("ray") is None:
            raise GermlineError("fleet.kind=ray needs ray: pip install 'germline[ray]'")
    elif isinstance(config.engine, Vllm):
        from germline.engines.vllm.engine import check_installed

        check_installed()
    if config.record.wandb:
        check_wandb_installed()
    for setting, scorer in config.scorers.items():
        if isinstance(scorer, HttpScorer):
            request_headers(scorer, f"{setting}.token_env")  # refuses a token that is not set
    check_prompt_lengths(config, task)


def check_episode_rewards(config: Config, task: Task) -> None:
    """Refuse what changes the reward of single completions where an environment computes it."""
    section = config.task
    kl = None if section.kl_coef is None else f"{section.kl_coef:g}"
    settings = {"scorers": ", ".join(section.scorers), "kl_coef": kl}
    given = [f"task.{name}={value}" for name, value in settings.items() if value]
    if given and isinstance(task, EpisodeTask):
        raise GermlineError(
            f"{given[0]} is for single completions, and this task has episodes of several turns: "
            "leave it out, and let the environment compute its reward"
        )


def check_memory(config: Config, *, searched: bool = True, engines: int = 1) -> None:
    """Refuse weights that do not fit the memory of the device or the host.

    Args:
        config: of the run.
        searched: whether masters are held in addition to the serving copy.
        engines: that will load at the same time and share the memory of this host.
    """
    if config.engine.has_own_model or config.model == "nano":
        return
    from germline.estimates.machine import machine_here
    from germline.estimates.memory import LESS_MEMORY, Estimate, memory_parts
    from germline.estimates.sizes import TextLengths, shape_of, workload

    machine = machine_here(config)
    try:
        shape = shape_of(config.model)
        work = workload(
            config, shape, TextLengths(config.batch_size, 1, 0, 1), on_gpu=machine.on_gpu
        )
    except GermlineError:
        return  # loading the model or the space raises the error
    if not searched:
        work = replace(work, searched=0, optimizer_bytes=0)
    # Weights that are served as they are stored are mapped from their files, which the processes
    # of a host share; engines on GPUs are taken to have a GPU each.
    is_mapped = work.dtype == shape.stored_dtype
    shared = ("weights", "stored weights") if is_mapped else ("stored weights",)
    parts = tuple(
        part
        if part.name in shared or (machine.on_gpu and part.place == "device")
        else replace(part, bytes=part.bytes * engines)
        for part in memory_parts(config, shape, work)
        if part.name in CERTAIN
    )
    found = Estimate(work, parts, machine)
    if (place := found.lacking) is None:
        return
    held = ", ".join(
        f"{part.name} {part.bytes / 1e9:.1f}"
        for part in parts
        if part.bytes and (part.place == place or not machine.on_gpu)
    )
    raise GermlineError(
        f"model={config.model} does not fit: {found.needed(place) / 1e9:.1f} GB of {place} memory "
        f"are needed before the first text ({held}), and {found.available(place) / 1e9:.1f} GB are "
        f"available; less is needed by {LESS_MEMORY}"
    )


def check_custom_reward(config: Config, task: Task, graders: Graders) -> None:
    """Refuse a custom task whose reward is broken.

    A reward that is not deterministic gets a warning in the log, as does an environment that fails
    on all replies that are tried: the model may find better ones.
    """
    section = config.task
    if not (isinstance(section, CustomTask) or section.reward_functions or section.scorers):
        return
    place = f"task.path: {section.path}" if isinstance(section, FileTask) else "data"
    place = f"reward {task.metric}()" if section.reward_functions else place
    examples = spread(task.examples("train"), QUICK)
    texts = [example.answer or example.prompt for example in examples]
    # The model's template may open thinking, which a completion then ends.
    thought = f"</{section.thinking_tag}>" if section.strip_thinking else ""
    completions = [thought + text for text in texts]
    grades = graders.submit(completions, examples).result()
    again = graders.submit(completions, examples).result()
    for text, one, two in zip(texts, grades, again, strict=True):
        if one.reward != two.reward and not math.isnan(one.reward + two.reward):
            log.warning(
                "%s: the reward of the completion %s was %g and then %g: a reward that "
                "is not deterministic adds noise to the fitness, and a resumed run gets other "
                "results; compute it from the completion and the row alone",
                *(place, short_text(text), one.reward, two.reward),
            )
            break
    for name, scorer in section.scorers.items():
        if all(math.isnan(grade.parts[name]) for grade in grades):
            remedy = "; start its server, or correct its url" if hasattr(scorer, "url") else ""
            raise GermlineError(
                f"task.scorers.{name} (kind={scorer.kind}) scored none of the {len(grades)} "
                f"completions that were tried: {grades[0].failure}{remedy}"
            )
    if all(grade.failure for grade in grades):
        gold = ", gold answers included" if any(example.answer for example in examples) else ""
        failed = f"fails on every answer that was tried{gold}: {grades[0].failure}"
        if not isinstance(task, EpisodeTask):
            raise GermlineError(
                f"{place}: the reward {failed}. `germline check TASK` shows more of a task "
                "in a file"
            )
        log.warning(
            "%s: the environment %s; an episode that fails earns the floor. `germline check TASK` "
            "shows more of a task in a file",
            *(place, failed),
        )


def prompts_in_both(task: Task) -> list[str]:
    """Return the held-out prompts that are also trained on, each once and sorted."""
    trained = distinct(task, task.examples("train"))
    held_out = distinct(task, task.examples("test"))
    return sorted({held_out[content].prompt for content in held_out.keys() & trained.keys()})


def distinct(task: Task, examples: Sequence[Example]) -> dict[str, Example]:
    """Return different examples by prompt; those of an environment, whose rows say more, by row."""
    if isinstance(task, EpisodeTask):
        return {repr((one.prompt, one.facts)): one for one in examples}
    return {repr((one.context, one.prompt)): one for one in examples}


def short_text(text: str) -> str:
    """Return the beginning of a completion, quoted."""
    if len(text) <= LONGEST_SHOWN:
        return repr(text)
    return f"{text[:LONGEST_SHOWN]!r} and {count_of(len(text) - LONGEST_SHOWN, 'more characters')}"


def spread(examples: Sequence[Any], count: int) -> list[Any]:
    """Return `count` of the examples, evenly spaced."""
    total = len(examples)
    return [examples[place * total // min(count, total)] for place in range(min(count, total))]
