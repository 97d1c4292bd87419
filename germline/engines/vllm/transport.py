"""What a transport to vLLM can do: generate, score, and call germline's worker extension."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from germline.engines.served.engine import SamplingRequest, Tokens
from germline.engines.vllm.worker_masters import WorkerMasters
from germline.types import EngineLost, GermlineError

ADAPTER_PATH = "germline:"
"""Prefix of the `lora_path` of adapters that the worker extension draws; the name follows."""


class GenerateRequest(NamedTuple):
    """One prompt to continue.

    Attributes:
        adapter: name of the member's adapter; None: the weights as they are in vLLM now.
        seed: of sampling.
    """

    adapter: str | None
    seed: int
    tokens: Tokens


@runtime_checkable
class Transport(Protocol):
    """A connection to vLLM whose workers have masters equal to the engine's.

    Attributes:
        worker_masters: of workers in other processes; None: the workers use the engine's masters.
    """

    worker_masters: WorkerMasters | None

    def call(self, verb: str, *arguments: Any) -> list[dict[str, str]]:
        """Call one of `worker_extension.VERBS` in all workers, and return their replies."""

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: SamplingRequest
    ) -> list[Tokens]:
        """Continue every prompt."""

    def score(
        self, requests: Sequence[GenerateRequest], starts: Sequence[int]
    ) -> list[Sequence[float]]:
        """Return the log-probabilities of each request's tokens from its start on."""

    def reset_prefix_cache(self) -> None:
        """Empty vLLM's prefix cache."""

    def unload_adapters(self, names: Sequence[str]) -> None:
        """Release adapters that no later request names."""

    def close(self) -> None:
        """End what was started; a user's server gets its own weights back."""


def check_worker_replies(replies: Sequence[dict[str, Any]]) -> None:
    """Raise the error that a worker reports.

    Raises:
        GermlineError: a worker reports an error.
        EngineLost: a worker was restarted, or serves another run now.
    """
    for reply in replies:
        if "lost" in reply:
            raise EngineLost(str(reply["lost"]))
        if "error" in reply:
            raise GermlineError(str(reply["error"]))
