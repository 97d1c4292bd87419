"""What a run refuses before its model is loaded; a training and its dry run call `check_run`.

A check refuses what would give a wrong result, lose work, or certainly not run. `machine_limits`
compares settings with this machine.
"""

import logging

from germline.config import Config, Ray, Vllm
from germline.config.scorers import HttpScorer
from germline.methods.method import check_task
from germline.protocols import EpisodeTask, Task
from germline.run.build_fleet import check_ray_installed
from germline.run.machine_limits import (
    check_engines,
    check_graders,
    check_population,
    check_threads,
)
from germline.run.prompt_lengths import check_prompt_lengths
from germline.run.task_check_row import prompts_in_both, short_text
from germline.scorers.http_service import request_headers
from germline.types import GermlineError

log = logging.getLogger(__name__)


def check_run(config: Config, task: Task | None) -> None:
    """Refuse settings that this machine or the task cannot have, memory for the weights apart.

    Args:
        config: of the run.
        task: of the run; None where its dataset is still to be downloaded.

    Raises:
        GermlineError: naming the setting, its value and what would do.
    """
    if task is not None:
        check_settings(config, task)
        _warn_of_small_splits(config, task)
        _warn_of_trained_prompts(task)
    _warn_of_patience(config)
    check_threads(config)
    check_engines(config)
    check_population(config, config.batch_size if task is None else len(task.examples("train")))
    check_graders(config)
    _check_packages(config)
    _check_scorer_tokens(config)
    if task is not None:
        check_prompt_lengths(config, task)


def check_settings(config: Config, task: Task) -> None:
    """Refuse settings that the task of a run cannot have, on any machine.

    Raises:
        GermlineError: naming the setting, its value and what would do.
    """
    check_episode_rewards(config, task)
    if config.task.kl_coef is not None and isinstance(task, EpisodeTask):
        raise GermlineError(
            f"task.kl_coef={config.task.kl_coef:g} is for single completions, and this task has "
            "episodes of several turns: drop it, and measure the divergence with `germline eval "
            "RUN --kl`"
        )
    check_task(config, task)


def check_episode_rewards(config: Config, task: Task) -> None:
    """Refuse scorers and weights of examples for a task whose environment computes the reward.

    Raises:
        GermlineError: naming the setting.
    """
    section = config.task
    weight = section.weight_field
    if not isinstance(task, EpisodeTask) or not (section.scorers or weight):
        return
    names = ", ".join(section.scorers)
    given = f"task.scorers={names}" if names else f"task.sample_weight={weight}"
    raise GermlineError(
        f"{given} is for single completions, and this task has episodes of several turns: leave it "
        "out, and let the environment compute its reward with it"
    )


def _check_packages(config: Config) -> None:
    """Refuse an engine or a fleet whose package is missing here.

    Raises:
        GermlineError: naming the package, and how to install it.
    """
    if isinstance(config.fleet, Ray):
        check_ray_installed()
    elif isinstance(config.engine, Vllm):
        from germline.engines.vllm.in_process import check_installed

        check_installed()


def _check_scorer_tokens(config: Config) -> None:
    """Refuse a scorer whose token is in no environment variable.

    Raises:
        GermlineError: naming the setting.
    """
    for setting, scorer in config.scorers.items():
        if isinstance(scorer, HttpScorer):
            request_headers(scorer, f"{setting}.token_env")


def _warn_of_small_splits(config: Config, task: Task) -> None:
    """Warn where a setting other than its default asks for more examples than a split has."""
    for setting, section, name, has in (
        ("batch_size", config, "batch_size", len(task.examples("train"))),
        ("held_out.examples", config.held_out, "examples", len(task.examples("test"))),
    ):
        asked = getattr(section, name)
        if asked > has and asked != type(section).model_fields[name].default:
            log.warning(
                "%s=%d: the split has %d examples, and all of them are used",
                *(setting, asked, has),
            )


def _warn_of_trained_prompts(task: Task) -> None:
    """Warn where the held-out score is partly one of prompts that are trained on."""
    if both := prompts_in_both(task):
        log.warning(
            "%d of the held-out prompts are also trained on, such as %s, so the held-out score "
            "tells less of new prompts: hold others out",
            *(len(both), short_text(both[0])),
        )


def _warn_of_patience(config: Config) -> None:
    """Warn where a run ends before so many held-out scores that it could stop early."""
    held_out = config.held_out
    if held_out.patience is None or held_out.patience * held_out.every < config.generations:
        return
    log.warning(
        "held_out.patience=%d never stops this run early: so many scores, one every %d generations "
        "(held_out.every), take %d generations, and the run has %d",
        *(held_out.patience, held_out.every, held_out.patience * held_out.every),
        config.generations,
    )
