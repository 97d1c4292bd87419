"""Settings of several sections that cannot be combined, and are rejected for that reason.

`ignored_settings` has the combinations in which a setting would have no effect.
"""

from typing import TYPE_CHECKING

from germline.config.schedules import CosineSchedule
from germline.config.sglang import Sglang
from germline.config.spaces import LowRank
from germline.config.strategies import RunningMeanBaseline
from germline.config.vllm import Vllm

if TYPE_CHECKING:
    from germline.config.run_config import Config


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


def _the_method_can_use_the_other_sections(config: "Config") -> None:
    config.method.check(config)


def _prompt_options_can_be_searched(config: "Config") -> None:
    if not config.prompt_search.options:
        return
    names = ", ".join(config.prompt_search.options)
    if config.strategy.kind != "nes":
        raise ValueError(
            f"the options of prompt_search ({names}) cannot be searched with strategy.kind="
            f"{config.strategy.kind}: use strategy.kind=nes, or drop them"
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


def _the_strategy_can_drive_the_space(config: "Config") -> None:
    strategy, space = config.strategy, config.space
    if strategy.has_coordinates and isinstance(space, LowRank):
        raise ValueError(
            f"strategy.kind={strategy.kind} cannot drive space.kind={space.kind}, whose members "
            "are products of random vectors and have no coordinates of their own: use "
            "space.kind=subspace, singular or lora, or full with few tensors (space.include)"
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
    _the_method_can_use_the_other_sections,
    _prompt_options_can_be_searched,
    _the_start_model_has_a_place,
    _the_strategy_can_drive_the_space,
    _a_warmup_ends_before_the_run,
)
"""In this order; the first combination that cannot run is reported."""
