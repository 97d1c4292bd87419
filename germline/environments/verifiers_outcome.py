"""What an episode of verifiers ended with: its reward and the parts, or whose fault a failure is.

- before the first reply, and errors of a service, a container or the endpoint: missing;
- any other exception of the task or its rewards, and a reward that is NaN or infinite: the floor;
- an episode in which nothing was rewarded: an error of the task.
"""

import math
from collections.abc import Sequence
from typing import Any

from germline.graders.worker_messages import GradeMissingError, InvalidGradeError, PartsFailedError

TOTAL = "reward"
"""The part of the rubric with the reward that verifiers computes: the weighted sum of its parts."""

INFRASTRUCTURE = ("ProviderError", "ToolsetError", "SandboxError", "InterceptionError")
"""Errors of verifiers that no reply of the model causes."""

SERVICE_AWAY = (
    *("ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "ConnectError"),
    *("APIConnectionError", "APITimeoutError", "InternalServerError"),
)
"""Exceptions with which a reward or an environment fails when a service that it asks is away."""

CONTEXT_IS_FULL = "context_length_exceeded"
"""The code of an endpoint's error when a conversation does not fit the model's context."""


def check_ok(episode: Any, *, has_replied: bool) -> None:
    """Raise the error of an episode that has failed: whether because of a reply or not."""
    late = any(trace.is_timeout for trace in episode.traces)
    if episode.ok and not late:
        return
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    kind = errors[-1].type if errors else "TimeoutError"
    text = errors[-1].message if errors else "a time limit of the task has passed"
    # verifiers writes the exception that it wraps into the message: `scoring: KeyError: 'a'`.
    is_away = not {kind, *text.split(": ")}.isdisjoint((*INFRASTRUCTURE, *SERVICE_AWAY))
    if (is_away and CONTEXT_IS_FULL not in text) or not has_replied:
        raise GradeMissingError(f"{kind}: {text}")
    raise PartsFailedError({}, f"{kind}: {text}")


def reward_parts(traces: Sequence[Any], parts: Sequence[str]) -> dict[str, float]:
    """Return the reward and its parts: means over the runs of the agents that are trained."""
    trained = [trace for trace in traces if trace.agent is None or trace.agent.trainable]
    trained = trained or list(traces)
    rewards = [_rewards(trace) for trace in trained]
    if not any(rewards):
        raise InvalidGradeError(
            "has no reward for an episode: define a method of the task with @vf.reward, or record "
            "a reward in every episode, trace.record_reward(name, 0.0) where it earns nothing"
        )
    values = [
        {name: reward.score for name, reward in given.items()} | _metrics(trace, parts)
        for trace, given in zip(trained, rewards, strict=True)
    ]
    known = {name: [one[name] for one in values if name in one] for name in parts}
    means = {name: sum(found) / len(found) for name, found in known.items() if found}
    total = sum(trace.reward for trace in trained) / len(trained)
    names = dict.fromkeys(name for given in rewards for name in given)
    _check_finite(f"the sum of the rewards {', '.join(names)}", total)
    return {**means, TOTAL: total}


def _rewards(trace: Any) -> dict[str, Any]:
    """Return the rewards of a run; one whose scoring did not run is None in the trace."""
    given = {name: reward for name, reward in trace.rewards.items() if reward is not None}
    for name, reward in given.items():
        _check_finite(f"the reward {name!r}", reward.score)
    return given


def _metrics(trace: Any, parts: Sequence[str]) -> dict[str, float]:
    """Return the metrics of a run that are parts of the rubric."""
    given = {name: value for name, value in trace.metrics.items() if value is not None}
    for name in given.keys() & parts:
        _check_finite(f"the metric {name!r}", given[name])
    return given


def _check_finite(what: str, value: float) -> None:
    if not math.isfinite(value):
        raise PartsFailedError(
            {}, f"{what} is {value:g}: it must be a finite number whatever the model replies"
        )
