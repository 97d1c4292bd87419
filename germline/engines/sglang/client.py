"""The requests to an SGLang server and its responses, which are checked before they are used.

Weights and adapters are sent as pickles, because SGLang's HTTP API takes nothing else; none are
ever received, and nothing here unpickles. Every response names the version of the weights it came
from, so responses of a restarted server, or of one that another run writes into, are recognized.

Limits: written against SGLang 0.5.23; older versions have no sessions of weight updates.
"""

import base64
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor

from germline.engines.http_client import HttpConnection, RequestRefused
from germline.spaces.base import MemberAdapter
from germline.types import Decoding, EngineLost, GermlineError

OLDEST = "0.5.23"
CHUNK_BYTES = 64 * 2**20
"""Limit of the tensors in one request; a larger tensor is sent alone."""


class ServerInfo(BaseModel):
    """The settings a server was started with, by SGLang's names."""

    model_path: str
    weight_version: str
    dtype: str
    tp_size: int
    dp_size: int
    max_loaded_loras: int | None = None
    enable_deterministic_inference: bool | None = None


@dataclass(frozen=True)
class GenerateRequest:
    """One prompt.

    Attributes:
        scored_from: position of the first token whose log-probability is returned; None: of none.
    """

    prompt: Sequence[int]
    sampling: Mapping[str, object]
    scored_from: int | None = None

    @classmethod
    def to_score(cls, tokens: Sequence[int], first: int) -> "GenerateRequest":
        """Ask for the log-probabilities of the tokens after position `first`, and no text."""
        return cls(tokens, {"max_new_tokens": 0, "temperature": 0.0}, first)


@dataclass(frozen=True)
class GenerateResponse:
    """The response to one prompt.

    Attributes:
        versions: of the weights it came from; several if they changed meanwhile.
        scores: log-probabilities of the prompt's tokens after `scored_from`.
    """

    tokens: tuple[int, ...]
    versions: frozenset[str]
    scores: tuple[float, ...]


def sampling_params(
    decoding: Decoding, end_ids: Sequence[int], seed: int, stop: tuple[str, ...]
) -> dict[str, object]:
    """Return SGLang's `sampling_params` for one prompt.

    All are set, as the server takes unset ones from the model's generation_config.json.
    """
    return {
        "max_new_tokens": decoding.max_new_tokens,
        "temperature": decoding.temperature,
        "top_p": decoding.top_p,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "stop": list(stop),
        "stop_token_ids": list(end_ids),
        "no_stop_trim": True,
        "skip_special_tokens": False,  # a stop string may be one, such as </tool_call>
        "spaces_between_special_tokens": False,
        "sampling_seed": seed,
    }


class SglangClient:
    """A client of one server."""

    def __init__(self, connection: HttpConnection) -> None:
        self.connection = connection
        self._copies = 1  # of sent tensors: one for each process of a tensor-parallel server

    def info(self) -> ServerInfo:
        """Return the settings the server was started with; refuse another kind of server."""
        name = self.connection.name
        try:
            started, model = map(self.connection.get, ("/server_info", "/model_info"))
            info = ServerInfo.model_validate({**started, **model})
        except (RequestRefused, TypeError, ValueError) as error:
            raise GermlineError(
                f"{name}: it is not a server of SGLang {OLDEST} or newer ({error})"
            ) from error
        if info.dp_size != 1:
            raise GermlineError(
                f"{name}: it has --dp-size {info.dp_size}, and a member would reach one of its "
                "copies only: start it with --dp-size 1"
            )
        self._copies = info.tp_size
        return info

    def generate(
        self, requests: Sequence[GenerateRequest], adapters: Sequence[str | None]
    ) -> list[GenerateResponse]:
        """Continue every prompt with the adapter of its member; None: the bare weights."""
        body: dict[str, object] = {
            "input_ids": [list(request.prompt) for request in requests],
            "sampling_params": [dict(request.sampling) for request in requests],
        }
        if any(adapters):
            body["lora_path"] = list(adapters)
        if any(request.scored_from is not None for request in requests):
            body["return_logprob"] = True
            body["logprob_start_len"] = [request.scored_from for request in requests]
        answers = self.connection.post("/generate", body)
        with self.connection.invalid_response_is_loss():
            return [
                _response(answer, request)
                for answer, request in zip(answers, requests, strict=True)
            ]

    def load_adapter(self, name: str, adapter: MemberAdapter, dtype: torch.dtype) -> None:
        """Load an adapter from memory, under a name that was never used before."""
        tensors = {key: _copy(tensor, dtype) for key, tensor in adapter.tensors.items()}
        body = {
            "lora_name": name,
            "config_dict": adapter.config(),
            "serialized_named_tensors": [_packed(tensors)] * self._copies,
        }
        try:
            self.connection.post("/load_lora_adapter_from_tensors", body)
        except RequestRefused as refusal:
            # A retry after the connection broke: the first request had reached the server.
            if "already loaded" not in refusal.reason:
                raise

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter."""
        self.connection.post("/unload_lora_adapter", {"lora_name": name})

    def write(
        self, tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype, version: str
    ) -> None:
        """Write fp32 tensors into the weights by canonical names, and empty the server's caches.

        They are rounded to the server's dtype here, as there; `version` names the weights.
        """
        self._open_session()
        for pairs in _chunks((name, _copy(tensor, dtype)) for name, tensor in tensors):
            body = {
                "serialized_named_tensors": [_packed(pairs)] * self._copies,
                "weight_version": version,
                "flush_cache": True,
            }
            self.connection.post("/update_weights_from_tensor", body)
        self.connection.post("/end_weight_update", {})

    def reload(self, model: str, version: str) -> None:
        """Make the server read its weights from its own disk again."""
        body = {"model_path": model, "weight_version": version, "flush_cache": True}
        self.connection.post("/update_weights_from_disk", body)

    def checksum(self) -> object:
        """Return the checksums of the server's weights."""
        response = self.connection.post("/weights_checker", {"action": "checksum"})
        with self.connection.invalid_response_is_loss():
            return [rank["checksums"] for rank in response["ranks"]]

    def is_healthy(self) -> bool:
        """Whether the server is ready; this costs it one token."""
        try:
            self.connection.get("/health")
        except (RequestRefused, EngineLost):
            return False
        return True

    def _open_session(self) -> None:
        try:
            self.connection.post("/begin_weight_update", {})
        except RequestRefused as refusal:
            if "already open" not in refusal.reason:
                raise
            # A run that was killed during a write left its session open.
            self.connection.post("/end_weight_update", {})
            self.connection.post("/begin_weight_update", {})


def _response(answer: Any, request: GenerateRequest) -> GenerateResponse:
    meta = answer["meta_info"]
    tokens = tuple(int(token) for token in answer["output_ids"])
    spans = meta.get("weight_versions") or [{"version": meta["weight_version"]}]
    versions = frozenset(str(span["version"]) for span in spans)
    scores = () if request.scored_from is None else _scores(meta, request, request.scored_from)
    return GenerateResponse(tokens, versions, scores)


def _scores(meta: Any, request: GenerateRequest, first: int) -> tuple[float, ...]:
    # The first entry has no score: its log-probability would need the token before it.
    scored = meta["input_token_logprobs"][1:]
    # SGLang scores the last token of the vocabulary like any other, but reports its id as 0.
    if any(
        label not in (token, 0)
        for (_, label, *_), token in zip(scored, request.prompt[first + 1 :], strict=True)
    ):
        raise ValueError("the scored tokens are not those that were sent")
    return tuple(float(score) for score, *_ in scored)


def _copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Copy into storage of its own: a pickle contains the whole storage a tensor is a part of."""
    return tensor.detach().to("cpu", dtype).clone(memory_format=torch.contiguous_format)


def _packed(tensors: object) -> str:
    return base64.b64encode(pickle.dumps(tensors)).decode("ascii")


def _chunks(pairs: Iterable[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
    """Group tensors up to `CHUNK_BYTES`; a larger tensor is a group of its own."""
    held: list[tuple[str, Tensor]] = []
    for name, tensor in pairs:
        if held and sum(one.nbytes for _, one in held) + tensor.nbytes > CHUNK_BYTES:
            yield held
            held = []
        held.append((name, tensor))
    if held:
        yield held
