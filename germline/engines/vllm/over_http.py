"""vLLM behind the URL of its OpenAI server, which was started with germline's part in its workers.

Members travel as names: the worker has masters of its own, which follow the same updates, and draws
the adapter of a member when it is told to load it. Prompts go as token ids, tokens come back. What
a request leaves open, such as top_k, would be taken from the model's generation config: so all of
it is said.

Nothing that comes from the network is unpickled; answers are JSON and checked. The routes that are
needed are vLLM's for development: let the server listen where only you can reach it.
"""

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch

from germline.config import Vllm
from germline.engines.master_weights import Masters
from germline.engines.pretrained import PretrainedModel
from germline.engines.served.http_client import HttpConnection, RequestRefused
from germline.engines.served.server_protocol import SamplingRequest, Tokens
from germline.engines.vllm.llm_arguments import max_lora_rank, serve_command
from germline.engines.vllm.server import ADAPTER_PATH, GenerateRequest, check_worker_replies
from germline.engines.vllm.worker_masters import WorkerMasters
from germline.types import EngineLost, GermlineError, MeanUpdate, Update

TOGETHER = 64
"""Requests under way at once, where each prompt has luck of its own."""

PLAIN = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": True,  # the tokens that end a text are named
    "return_token_ids": True,
}


@dataclass
class HttpTransport:
    """An OpenAI server of vLLM.

    Attributes:
        recipe: how masters are made of the model there.
    """

    section: Vllm
    pretrained: PretrainedModel
    dtype: torch.dtype
    recipe: str
    _loaded: set[str] = field(default_factory=set)
    _run: str = field(default_factory=lambda: uuid.uuid4().hex)

    def open(self, masters: Masters) -> None:
        """Find the server, and let its workers have masters equal to these."""
        url = str(self.section.base_url)
        self._name = f"engine.base_url={url}"
        self._start = serve_command(self.pretrained.source, masters, self.dtype, url)
        retry_timeout_s = self.section.retry_timeout_s
        # A wrong address is told at once; one that was right is worth waiting for.
        self._connection = HttpConnection(self._name, url, self.section.timeout_s)
        self._model = self._served()
        (about, *_) = self._describe()
        self._check_unfit(about, masters)
        self._slots = max(1, int(about["max_loras"]))
        self._replicas = WorkerMasters(self._ask, masters, self.recipe, self._name)
        self._connection = replace(self._connection, retry_timeout_s=retry_timeout_s)

    def call(self, verb: str, *texts: str) -> None:
        """Ask all workers for something."""
        self._ask(verb, *texts)

    def follow(self, update: Update | MeanUpdate) -> None:
        """Let the workers' masters move as the engine's have."""
        self._replicas.follow(update)

    def send(self) -> None:
        """Let the workers' masters be as the engine's are."""
        self._replicas.send()

    def play(self, rows: Sequence[GenerateRequest], sampling: SamplingRequest) -> list[Tokens]:
        """Go on from every row: as many adapters at once as the server has room for."""
        decoding = sampling.decoding
        ways = {
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            "max_tokens": decoding.max_new_tokens,
            "stop": list(decoding.stop),
            "stop_token_ids": list(sampling.end_ids),
        }
        seeds = sampling.seeds if decoding.temperature > 0 else None
        choices = self._complete(rows, ways, seeds)
        return [_tokens(self._name, choice) for choice in choices]

    def read(
        self, rows: Sequence[GenerateRequest], prompts: Sequence[int]
    ) -> list[Sequence[float]]:
        """Return how likely each token is behind so many of a row, its natural logarithm."""
        ways = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 0}
        choices = self._complete(rows, ways, None)
        return [
            _scores(self._name, choice, row.tokens, start)
            for choice, row, start in zip(choices, rows, prompts, strict=True)
        ]

    def forget_prefixes(self) -> None:
        """Empty the cache of prefixes."""
        answer = self._post("/reset_prefix_cache", {})
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise GermlineError(
                f"{self._name}: it could not empty its cache of prefixes, as it is at work for "
                "somebody else: give each run a server of its own, and resume"
            )

    def forget_adapters(self, names: Sequence[str]) -> None:
        """Let the server forget these names; it drops their adapters when it needs the room."""
        for name in self._loaded & set(names):
            with contextlib.suppress(RequestRefused):
                self._post("/v1/unload_lora_adapter", {"lora_name": name})
        self._loaded -= set(names)

    def close(self) -> None:
        """Leave the server as it was found: with the base model, and no adapter of ours."""
        if hasattr(self, "_replicas"):
            self._connection = replace(self._connection, retry_timeout_s=0.0)
            with contextlib.suppress(GermlineError):
                self.forget_adapters(list(self._loaded))
                self._ask("load_base")
                self.forget_prefixes()

    def _complete(
        self, rows: Sequence[GenerateRequest], ways: dict[str, Any], seeds: Sequence[int] | None
    ) -> list[Any]:
        """Return the server's choice for every row, in order."""
        turns = [list(turn) for _, turn in groupby(rows, lambda row: row.adapter)]
        with (
            ThreadPoolExecutor(max_workers=self._slots) as by_adapter,
            ThreadPoolExecutor(max_workers=TOGETHER) as by_prompt,
        ):

            def take(turn: list[GenerateRequest]) -> list[Any]:
                self._load(turn[0].adapter)
                if seeds is None:
                    return self._choices(turn, ways)
                alone = [(row, {**ways, "seed": seeds[row.place]}) for row in turn]
                found = by_prompt.map(lambda one: self._choices([one[0]], one[1]), alone)
                return [choice for choices in found for choice in choices]

            answers = list(by_adapter.map(take, turns))
        # Whoever was started anew meanwhile has played with other weights.
        self._ask("listen")
        return [choice for answer in answers for choice in answer]

    def _choices(self, rows: Sequence[GenerateRequest], ways: dict[str, Any]) -> list[Any]:
        body = {
            "model": rows[0].adapter or self._model,
            "prompt": [list(row.tokens) for row in rows],
            **PLAIN,
            **ways,
        }
        with _believed(self._name):
            answer = self._post("/v1/completions", body)
            choices = sorted(answer["choices"], key=lambda choice: choice["index"])
            if [choice["index"] for choice in choices] != list(range(len(rows))):
                raise ValueError(f"{len(rows)} prompts, {len(choices)} answers")
            return choices

    def _load(self, name: str | None) -> None:
        if name is None or name in self._loaded:
            return
        try:
            self._post(
                "/v1/load_lora_adapter", {"lora_name": name, "lora_path": ADAPTER_PATH + name}
            )
        except RequestRefused as error:
            if error.status == 404:
                raise GermlineError(self._told("loads no adapters while it runs")) from error
            if "already" not in error.words:  # the first answer was lost, and it was sent again
                raise
        self._loaded.add(name)

    def _ask(self, verb: str, *texts: str) -> list[dict[str, str]]:
        body = {"method": "germline", "args": [self._run, verb, *texts]}
        with _believed(self._name):
            answers = self._post("/collective_rpc", body)["results"]
            check_worker_replies(answers)
            if not answers or not all(isinstance(one, dict) for one in answers):
                raise ValueError(f"its workers say {str(answers)[:100]}")
        return list(answers)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        try:
            return self._connection.post(path, body)
        except RequestRefused as error:
            if error.status < 500:
                raise
            raise EngineLost(f"{error}; look into its log") from error

    def _served(self) -> str:
        """Return the name by which the server knows the base model."""
        try:
            with _believed(self._name):
                models = self._connection.get("/v1/models")["data"]
                return str(next(one["id"] for one in models if not one.get("parent")))
        except GermlineError as error:
            raise GermlineError(f"{error}. Start it with\n{self._start}") from error

    def _describe(self) -> list[dict[str, str]]:
        try:
            return self._ask("describe")
        except RequestRefused as error:
            raise GermlineError(self._told("does not let its workers be asked")) from error
        except EngineLost as error:
            raise GermlineError(self._told(f"lacks germline's part ({error})")) from error

    def _check_unfit(self, about: dict[str, Any], masters: Masters) -> None:
        dtype = str(self.dtype).removeprefix("torch.")
        if about["dtype"] != dtype:
            raise GermlineError(
                f"{self._name}: it serves in {about['dtype']}, but engine.dtype is {dtype} here: "
                f"set engine.dtype={about['dtype']}"
            )
        if not masters.has_adapter_members:
            return
        needed = max_lora_rank(masters, None)
        if not about["max_loras"]:
            raise GermlineError(self._told("serves no adapters"))
        if about["max_lora_rank"] < needed:
            raise GermlineError(
                self._told(f"has room for rank {about['max_lora_rank']}, and {needed} is needed")
            )

    def _told(self, found: str) -> str:
        return f"{self._name}: the server {found}. Start it with\n{self._start}"


@contextlib.contextmanager
def _believed(name: str) -> Iterator[None]:
    """Take an answer that makes no sense for that of a server that is lost."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, StopIteration) as error:
        raise EngineLost(
            f"{name}: its answer makes no sense ({type(error).__name__}: {error}): look into its "
            "log, and at what stands between, such as a proxy"
        ) from error


def _tokens(name: str, choice: Any) -> Tokens:
    with _believed(name):
        return [int(token) for token in choice["token_ids"]]


def _scores(name: str, choice: Any, tokens: Tokens, start: int) -> list[float]:
    with _believed(name):
        found = choice["prompt_logprobs"]
        if len(found) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens were sent, {len(found)} were scored")
        return [
            float(found[place][str(tokens[place])]["logprob"])
            for place in range(start, len(tokens))
        ]
