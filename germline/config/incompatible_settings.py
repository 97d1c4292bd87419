"""Settings of several sections that cannot be combined, and are rejected for that reason.

`ignored_settings` has the combinations in which a setting would have no effect.
"""

from typing import TYPE_CHECKING

from germline.config.methods import EsSampleGradientDescent, EvolutionStrategy, RandOpt
from germline.config.safe_alignment import SafeAlignment
from germline.config.schedules import (
    AutoLearningRate,
    AutoSigma,
    CosineSchedule,
    NaturalGradientSigma,
)
from germline.config.sglang import Sglang
from germline.config.spaces import LowRank
from germline.config.strategies import Nes, RunningMeanBaseline
from germline.config.vllm import Vllm

if TYPE_CHECKING:
    from germline.config.run_config import Config

GRADIENTS_OF = ("full", "low_rank")
"""Spaces whose tensors belong to the model, which backpropagation reaches."""


def check_incompatible_settings(config: "Config") -> None:
    """Refuse a combination of settings that cannot run.

    Raises:
        ValueError: names the settings and a remedy.
    """
    for check in CHECKS:
        check(config)


def _one_server_has_one_engine(config: "Config") -> None:
    url = getattr(config.engine, "base_url", None)
    if url is not None and config.fleet.engines > 1:
        raise ValueError(
            f"fleet.engines={config.fleet.engines} engines would write into one server, "
            f"engine.base_url={url}: use fleet.engines=1, or engines that start their own"
        )


def _a_running_baseline_is_in_the_unit_of_the_reward(config: "Config") -> None:
    running = isinstance(getattr(config.strategy, "baseline", None), RunningMeanBaseline)
    if running and (config.shaping.kind != "raw" or config.shaping.elite < 1):
        raise ValueError(
            f"strategy.baseline=running is a fitness to subtract, which shaping.kind="
            f"{config.shaping.kind} with elite={config.shaping.elite:g} does not do: use "
            "shaping=raw, with a learning rate for the unit of the reward"
        )


def _the_method_can_use_the_strategy(config: "Config") -> None:
    method, strategy = config.method, config.strategy
    if isinstance(method, EvolutionStrategy):
        return
    if not isinstance(strategy, Nes):
        raise ValueError(
            f"strategy.kind={strategy.kind} cannot be used by method.kind={method.kind}, whose "
            "members are seeds: use strategy.kind=nes"
        )
    if isinstance(method, RandOpt):
        _check_voting(method, strategy, config.generations)
    else:
        _check_gradient(method, strategy)


def _check_voting(method: RandOpt, nes: Nes, generations: int) -> None:
    if not isinstance(nes.sigma, float | AutoSigma):
        raise ValueError(
            f"strategy.sigma.kind={nes.sigma.kind} cannot be used by method.kind={method.kind}: "
            "give a number or auto, or method.sigmas=[...] for several"
        )
    if method.ensemble_size > nes.population * generations:
        raise ValueError(
            f"method.ensemble_size={method.ensemble_size} is more than the "
            f"{nes.population * generations} members of strategy.population times generations: "
            "keep fewer or evaluate more"
        )


def _check_gradient(method: EsSampleGradientDescent, nes: Nes) -> None:
    why = f"by method.kind={method.kind}"
    if isinstance(nes.sigma, NaturalGradientSigma):
        raise ValueError(
            f"strategy.sigma.kind=natural cannot be used {why}, whose gradient does not contain "
            "sigma: give a number or another schedule"
        )
    if isinstance(nes.learning_rate, AutoLearningRate):
        raise ValueError(
            f"strategy.learning_rate=auto cannot be used {why}, which follows a gradient and not "
            "the differences between members: give a number, such as 0.0005"
        )


def _backpropagation_has_a_model_and_samples(config: "Config") -> None:
    method, space, fleet = config.method, config.space, config.fleet
    if not isinstance(method, EsSampleGradientDescent):
        return
    refusal = f"cannot be used by method.kind={method.kind}"
    if space.kind not in GRADIENTS_OF:
        raise ValueError(
            f"space.kind={space.kind} {refusal}, whose gradient moves whole tensors of the "
            f"model: use space.kind={' or '.join(GRADIENTS_OF)}"
        )
    if config.engine.kind != "inprocess":
        raise ValueError(
            f"engine.kind={config.engine.kind} {refusal}, as it has no gradients: use inprocess"
        )
    if fleet.kind != "local":
        raise ValueError(f"fleet.kind={fleet.kind} {refusal}, which runs one model here: use local")
    if fleet.engines > 1:
        raise ValueError(f"fleet.engines={fleet.engines} {refusal}, which runs one model: use 1")
    if method.exploration == "temperature" and config.task.temperature == 0:
        raise ValueError(
            "task.temperature=0 writes the same completion every time, so method.exploration="
            "temperature has nothing to compare: set task.temperature=1"
        )


def _prompt_options_can_be_searched(config: "Config") -> None:
    if not config.prompt_search.options:
        return
    names = ", ".join(config.prompt_search.options)
    if config.method.kind != "es":
        raise ValueError(
            f"the options of prompt_search ({names}) cannot be searched by method.kind="
            f"{config.method.kind}: use method.kind=es, or drop them"
        )
    if config.strategy.kind != "nes":
        raise ValueError(
            f"the options of prompt_search ({names}) cannot be searched with strategy.kind="
            f"{config.strategy.kind}: use strategy.kind=nes, or drop them"
        )


def _rewards_that_change_are_compared_in_one_generation(config: "Config") -> None:
    task, method = config.task, config.method.kind
    if isinstance(task, SafeAlignment) and task.adapts and method != "es":
        raise ValueError(
            f"task.lambda_lr={task.lambda_lr:g} and task.safe_first={task.safe_first} change "
            f"rewards over a run, which needs method.kind=es, found {method}: set task.lambda_lr=0 "
            "and task.safe_first=null to keep lambda as it is"
        )


def _the_start_model_has_a_place(config: "Config") -> None:
    """Refuse a KL penalty where the start model has no place beside the engines."""
    if config.task.kl_coef is None:
        return
    needs = f"task.kl_coef={config.task.kl_coef:g} loads the start model beside the trained one"
    if isinstance(config.engine, Vllm | Sglang):
        raise ValueError(
            f"{needs}, and engine.kind={config.engine.kind} serves one model: use "
            "engine=inprocess, or drop kl_coef and measure the divergence with "
            "`germline eval RUN --kl`"
        )
    if config.fleet.kind == "ray":
        raise ValueError(
            f"{needs}, in the training process, which has no engine's device on a cluster: use "
            "fleet.kind=local, or drop kl_coef"
        )
    if config.method.kind == "es_sample_gd":
        raise ValueError(
            f"{needs}, and method.kind=es_sample_gd has gradients of one model: drop kl_coef"
        )


def _the_strategy_can_drive_the_space(config: "Config") -> None:
    strategy, space = config.strategy, config.space
    if strategy.has_coordinates and isinstance(space, LowRank):
        raise ValueError(
            f"strategy.kind={strategy.kind} cannot drive space.kind={space.kind}, whose members "
            "are products of random vectors and have no coordinates of their own: use "
            "space.kind=subspace, singular or lora, or full with few tensors (space.include)"
        )


def _a_measured_rate_has_examples_to_compare(config: "Config") -> None:
    measured = isinstance(getattr(config.strategy, "learning_rate", None), AutoLearningRate)
    if measured and config.batch_size == 1 and config.method.kind == "es":
        raise ValueError(
            "strategy.learning_rate=auto measures signal and noise by how examples differ, "
            "and batch_size=1 has one: use batch_size=2 or more, or give learning_rate as a "
            "number, such as 0.01"
        )


def _a_warmup_ends_before_the_run(config: "Config") -> None:
    for name in ("sigma", "learning_rate"):
        schedule = getattr(config.strategy, name, None)
        if isinstance(schedule, CosineSchedule) and 0 < schedule.warmup > config.generations - 2:
            raise ValueError(
                f"strategy.{name}.warmup={schedule.warmup} leaves no way from start to end in "
                f"generations={config.generations}: use warmup={max(0, config.generations - 2)} "
                "or less"
            )


CHECKS = (
    _one_server_has_one_engine,
    _a_running_baseline_is_in_the_unit_of_the_reward,
    _the_method_can_use_the_strategy,
    _backpropagation_has_a_model_and_samples,
    _prompt_options_can_be_searched,
    _rewards_that_change_are_compared_in_one_generation,
    _the_start_model_has_a_place,
    _the_strategy_can_drive_the_space,
    _a_measured_rate_has_examples_to_compare,
    _a_warmup_ends_before_the_run,
)
"""In this order; the first combination that cannot run is reported."""
