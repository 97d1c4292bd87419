"""Settings of the KL penalty: how much a member's reward falls with its distance from the start."""

from typing import Literal

from pydantic import Field

from germline.config.base import Section
from germline.config.engines import EngineConfig
from germline.config.fleets import FleetConfig
from germline.config.sglang import Sglang
from germline.config.vllm import Vllm

KL_PART = "kl"
"""Name of the rubric part."""


class KlPenalty(Section):
    """Settings of the KL penalty, which every task has."""

    kl_coef: float | None = Field(
        None,
        ge=0,
        description=(
            "Reward lost per nat of KL divergence of a member from the start model, on the "
            "completion that the member wrote: `kl_coef` and `beta` of TRL. 0 only reports the "
            "divergence, as the part `kl`; `null` does not measure it."
        ),
    )
    kl_estimator: Literal["k1", "k3"] = Field(
        "k3",
        description=(
            "Estimator from the tokens of the completion, with d = log p_start - log p_member: "
            "`k1`, -d; `k3`, exp(d) - d - 1, which is never negative."
        ),
    )
    kl_per: Literal["token", "completion"] = Field(
        "token", description="The mean over the tokens of a completion, or their sum."
    )


def check_kl_penalty(
    task: KlPenalty, engine: EngineConfig, fleet: FleetConfig, method: str
) -> None:
    """Refuse a KL penalty where the start model has no place beside the engines.

    Raises:
        ValueError: the engine, the fleet or the method cannot have one.
    """
    if task.kl_coef is None:
        return
    needs = f"task.kl_coef={task.kl_coef:g} loads the start model beside the trained one"
    if isinstance(engine, Vllm | Sglang):
        raise ValueError(
            f"{needs}, and engine.kind={engine.kind} serves one model: use engine=inprocess, or "
            "drop kl_coef and measure the divergence with `germline eval RUN --kl`"
        )
    if fleet.kind == "ray":
        raise ValueError(
            f"{needs}, in the training process, which has no engine's device on a cluster: use "
            "fleet.kind=local, or drop kl_coef"
        )
    if method == "es_sample_gd":
        raise ValueError(
            f"{needs}, and method.kind=es_sample_gd has gradients of one model: drop kl_coef"
        )
