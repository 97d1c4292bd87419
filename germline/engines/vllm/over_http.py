"""vLLM behind the URL of its OpenAI server, started with germline's extension in its workers.

Only names of members are sent: the workers have masters of their own, to which they apply the same
updates, and draw the adapter of a member when the server loads it. Prompts are sent as token ids
and tokens are returned. Requests set every sampling parameter, because the server takes unset ones,
such as top_k, from the model's generation_config.json.

Nothing that comes from the network is unpickled; responses are JSON and are checked. The routes are
vLLM's development routes: let the server listen where only you can reach it.
"""

import contextlib
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch

from germline.config import Vllm
from germline.engines.master_weights import Masters
from germline.engines.served.engine import SamplingRequest, Tokens
from germline.engines.served.http_client import HttpConnection, RequestRefused
from germline.engines.vllm.llm_arguments import max_lora_rank, serve_command
from germline.engines.vllm.transport import ADAPTER_PATH, GenerateRequest, check_worker_replies
from germline.engines.vllm.worker_masters import WorkerMasters
from germline.types import EngineLost, GermlineError

SEEDED_REQUESTS = 64
"""Requests sent at once when every prompt has a sampling seed of its own."""

FIXED_PARAMETERS = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": True,  # stop_token_ids has every token that ends a text
    "return_token_ids": True,
}


class HttpTransport:
    """An OpenAI server of vLLM.

    Args:
        section: of the config.
        masters: of the engine.
        dtype: that the server must serve in.
        spec: from which the server's workers build masters.

    Raises:
        GermlineError: there is no server, or not the one the run needs.
    """

    def __init__(self, section: Vllm, masters: Masters, dtype: torch.dtype, spec: str) -> None:
        url = str(section.base_url)
        name = f"engine.base_url={url}"
        self._start_command = serve_command(masters, dtype, url)
        self._run = uuid.uuid4().hex
        self._loaded: set[str] = set()
        # No retries yet: a wrong URL is an error at once.
        self._connection = HttpConnection(name, url, section.timeout_s)
        self._model = self._served_model()
        (about, *_) = self._describe()
        self._check(about, masters, dtype)
        self._slots = max(1, int(about["max_loras"]))
        self.worker_masters: WorkerMasters | None = WorkerMasters(self.call, masters, spec, name)
        self._connection = replace(self._connection, retry_timeout_s=section.retry_timeout_s)

    def call(self, verb: str, *arguments: Any) -> list[dict[str, str]]:
        """Call a verb of the worker extension in all workers, and return their replies."""
        body = {"method": "germline", "args": [self._run, verb, *arguments]}
        with self._connection.invalid_response_is_loss():
            replies = self._post("/collective_rpc", body)["results"]
            check_worker_replies(replies)
            if not replies or not all(isinstance(reply, dict) for reply in replies):
                raise ValueError(f"its workers reply {str(replies)[:100]}")
        return list(replies)

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: SamplingRequest
    ) -> list[Tokens]:
        """Continue every prompt, with as many adapters at once as the server has slots."""
        decoding = sampling.decoding
        parameters = {
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            "max_tokens": decoding.max_new_tokens,
            "stop": list(decoding.stop),
            "stop_token_ids": list(sampling.end_ids),
        }
        choices = self._complete(requests, parameters, seeded=decoding.temperature > 0)
        with self._connection.invalid_response_is_loss():
            return [[int(token) for token in choice["token_ids"]] for choice in choices]

    def score(
        self, requests: Sequence[GenerateRequest], starts: Sequence[int]
    ) -> list[Sequence[float]]:
        """Return the log-probabilities of each request's tokens from its start on."""
        parameters = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 0}
        choices = self._complete(requests, parameters, seeded=False)
        with self._connection.invalid_response_is_loss():
            return [
                _scores(choice, request.tokens, start)
                for choice, request, start in zip(choices, requests, starts, strict=True)
            ]

    def reset_prefix_cache(self) -> None:
        """Empty the server's prefix cache."""
        response = self._post("/reset_prefix_cache", {})
        if not isinstance(response, dict) or response.get("success") is not True:
            raise GermlineError(
                f"{self._connection.name}: the server could not empty its prefix cache, because it "
                "is processing requests of another user: give each run a server of its own, and "
                "resume"
            )

    def unload_adapters(self, names: Sequence[str]) -> None:
        """Unload adapters from the server, which evicts them when it needs their slots."""
        for name in self._loaded & set(names):
            with contextlib.suppress(RequestRefused):
                self._post("/v1/unload_lora_adapter", {"lora_name": name})
        self._loaded -= set(names)

    def close(self) -> None:
        """Give the server the base model's weights back, and unload this run's adapters."""
        self._connection = replace(self._connection, retry_timeout_s=0.0)
        with contextlib.suppress(GermlineError):
            self.unload_adapters(list(self._loaded))
            self.call("load_base")
            self.reset_prefix_cache()

    def _complete(
        self,
        requests: Sequence[GenerateRequest],
        parameters: dict[str, Any],
        *,
        seeded: bool,
    ) -> list[Any]:
        """Return the server's choice for every request, in order."""
        by_adapter = [list(group) for _, group in groupby(requests, lambda one: one.adapter)]
        with (
            ThreadPoolExecutor(max_workers=self._slots) as adapter_threads,
            ThreadPoolExecutor(max_workers=SEEDED_REQUESTS) as prompt_threads,
        ):

            def complete(group: list[GenerateRequest]) -> list[Any]:
                self._load_adapter(group[0].adapter)
                if not seeded:
                    return self._choices(group, parameters)
                alone = [([request], {**parameters, "seed": request.seed}) for request in group]
                choices = prompt_threads.map(lambda arguments: self._choices(*arguments), alone)
                return [choice for (choice,) in choices]

            answers = list(adapter_threads.map(complete, by_adapter))
        # Fails if the server was restarted meanwhile: its answers came from other weights.
        self.call("listen")
        return [choice for answer in answers for choice in answer]

    def _choices(
        self, requests: Sequence[GenerateRequest], parameters: dict[str, Any]
    ) -> list[Any]:
        body = {
            "model": requests[0].adapter or self._model,
            "prompt": [list(request.tokens) for request in requests],
            **FIXED_PARAMETERS,
            **parameters,
        }
        with self._connection.invalid_response_is_loss():
            response = self._post("/v1/completions", body)
            choices = sorted(response["choices"], key=lambda choice: choice["index"])
            if [choice["index"] for choice in choices] != list(range(len(requests))):
                raise ValueError(f"{len(requests)} prompts got {len(choices)} completions")
            return choices

    def _load_adapter(self, name: str | None) -> None:
        if name is None or name in self._loaded:
            return
        body = {"lora_name": name, "lora_path": ADAPTER_PATH + name}
        try:
            self._post("/v1/load_lora_adapter", body)
        except RequestRefused as refusal:
            if refusal.status == 404:
                raise self._unfit("cannot load adapters while it runs") from refusal
            # A retry after the connection broke: the first request had reached the server.
            if "already" not in refusal.reason:
                raise
        self._loaded.add(name)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        try:
            return self._connection.post(path, body)
        except RequestRefused as refusal:
            if refusal.status < 500:
                raise
            raise EngineLost(f"{refusal}; look into the server's log") from refusal

    def _served_model(self) -> str:
        """Return the server's name of the base model."""
        try:
            with self._connection.invalid_response_is_loss():
                models = self._connection.get("/v1/models")["data"]
                return str(next(model["id"] for model in models if not model.get("parent")))
        except GermlineError as error:
            raise GermlineError(f"{error}. Start it with\n{self._start_command}") from error

    def _describe(self) -> list[dict[str, str]]:
        try:
            return self.call("describe")
        except RequestRefused as refusal:
            raise self._unfit("lacks the route /collective_rpc") from refusal
        except EngineLost as error:
            raise self._unfit(f"lacks germline's worker extension ({error})") from error

    def _check(self, about: dict[str, Any], masters: Masters, dtype: torch.dtype) -> None:
        name = str(dtype).removeprefix("torch.")
        if about["dtype"] != name:
            raise GermlineError(
                f"{self._connection.name}: the server's dtype is {about['dtype']}, but "
                f"engine.dtype is {name} here: set engine.dtype={about['dtype']}"
            )
        if not masters.has_adapter_members:
            return
        needed = max_lora_rank(masters, None)
        if not about["max_loras"]:
            raise self._unfit("serves no adapters")
        if about["max_lora_rank"] < needed:
            raise self._unfit(
                f"accepts adapters up to rank {about['max_lora_rank']}, and the run needs {needed}"
            )

    def _unfit(self, problem: str) -> GermlineError:
        return GermlineError(
            f"{self._connection.name}: the server {problem}. Start it with\n{self._start_command}"
        )


def _scores(choice: Any, tokens: Tokens, start: int) -> list[float]:
    scores = choice["prompt_logprobs"]
    if len(scores) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens were sent, {len(scores)} were scored")
    return [
        float(scores[position][str(tokens[position])]["logprob"])
        for position in range(start, len(tokens))
    ]
