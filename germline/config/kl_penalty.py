"""Settings of the KL penalty: how much a member's reward falls with its distance from the start."""

from typing import Literal

from pydantic import Field

from germline.config.base import Section

KL_PART = "kl"
"""Name of the rubric part."""


class KlPenalty(Section):
    """Settings of the KL penalty, which every task has."""

    kl_coef: float | None = Field(None, ge=0)
    """Reward lost per nat of KL divergence of a member from the start model, on the completion
    that the member wrote: `kl_coef` and `beta` of TRL. 0 only reports the divergence, as the
    part `kl`; `null` does not measure it."""
    kl_estimator: Literal["k1", "k3"] = "k3"
    """Estimator from the tokens of the completion, with d = log p_start - log p_member: `k1`,
    -d; `k3`, exp(d) - d - 1, which is never negative."""
    kl_per: Literal["token", "completion"] = "token"
    """The mean over the tokens of a completion, or their sum."""
