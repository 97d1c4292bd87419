"""What is asked of an SGLang server, and what it answers: checked, as it may be anything.

Weights and adapters are sent as pickles, as SGLang's HTTP API asks for; none are ever received, and
nothing here unpickles. Every answer names the version of the weights that wrote it, so a server
that was restarted, or into which another run writes, is noticed before its texts are believed.

Limits: written against SGLang 0.5.23; older ones have no sessions of weight updates.
"""

import base64
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from germline.engines.served.http_client import HttpConnection, RequestRefused
from germline.engines.served.server_protocol import SamplingRequest
from germline.protocols import MemberAdapter
from germline.types import EngineLost, GermlineError

OLDEST = (0, 5, 23)
CHUNK_BYTES = 64 * 2**20
"""Tensors sent in one request, unless a single one is larger."""


@dataclass(frozen=True)
class ServerInfo:
    """How a server was started.

    Attributes:
        model: the path or hub id it loaded, on its own machine.
        architecture: class of the model, as in its `config.json`.
        weight_version: what its weights are called at the moment.
        adapters: whether it can have any.
        target_modules: kinds of linear layers that may have them; empty: it does not tell.
        max_rank: of adapters; None: it does not tell.
        loadable: most adapters held at once; None: any number.
        seeds: whether it heeds the seeds of sampling.
    """

    version: str
    model: str
    architecture: str
    weight_version: str
    dtype: str
    tensor_parallel: int
    data_parallel: int
    adapters: bool
    target_modules: frozenset[str]
    max_rank: int | None
    loadable: int | None
    seeds: bool


@dataclass(frozen=True)
class GenerateRequest:
    """One prompt of a request.

    Attributes:
        adapter: name of the adapter it is played with; None: the weights alone.
        sampling: SGLang's `sampling_params`.
        scored_from: position of the first token whose log-probability is wanted; None: of none.
    """

    prompt: Sequence[int]
    adapter: str | None
    sampling: Mapping[str, object]
    scored_from: int | None = None


@dataclass(frozen=True)
class GenerateResponse:
    """What came of a row.

    Attributes:
        versions: of the weights that wrote it; more than one where they changed meanwhile.
        scores: log-probabilities of the prompt's tokens from `scored_from` on.
    """

    tokens: tuple[int, ...]
    versions: frozenset[str]
    scores: tuple[float, ...]


def sampling_params(
    sampling: SamplingRequest, seed: int, stop: tuple[str, ...]
) -> dict[str, object]:
    """Return SGLang's `sampling_params` for one prompt.

    All that is not said here a server may take from the model's generation_config.json.
    """
    decoding = sampling.decoding
    return {
        "max_new_tokens": decoding.max_new_tokens,
        "temperature": decoding.temperature,
        "top_p": decoding.top_p,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "stop": list(stop),
        "stop_token_ids": list(sampling.end_ids),
        "no_stop_trim": True,
        "sampling_seed": seed,
    }


class SglangClient:
    """Asks one server."""

    def __init__(self, connection: HttpConnection) -> None:
        self.connection = connection
        self._copies = 1  # of what is sent: one for each process of a tensor-parallel server

    def info(self) -> ServerInfo:
        """Ask how the server was started.

        Raises:
            GermlineError: it is no SGLang server, or too old a one.
        """
        try:
            started = self.connection.get("/server_info")
            model = self.connection.get("/model_info")
            info = _server_info(started, model)
        except (RequestRefused, _Unexpected) as error:
            raise GermlineError(
                f"{self.connection.name}: it is no SGLang server that can be used here "
                f"({error}): name one of SGLang {_dotted(OLDEST)} or newer"
            ) from error
        found = tuple(int(part) for part in re.findall(r"\d+", info.version)[:3])
        if found < OLDEST:
            raise GermlineError(
                f"{self.connection.name}: it is SGLang {info.version}, which cannot take weights "
                f"as they are sent here: use {_dotted(OLDEST)} or newer"
            )
        self._copies = info.tensor_parallel
        return info

    def generate(self, rows: Sequence[GenerateRequest]) -> list[GenerateResponse]:
        """Let the server go on from every row.

        Raises:
            Refused: it does not take one of them.
            EngineLost: it is gone, or answers something else.
        """
        body: dict[str, object] = {
            "input_ids": [list(row.prompt) for row in rows],
            "sampling_params": [dict(row.sampling) for row in rows],
        }
        if any(row.adapter is not None for row in rows):
            body["lora_path"] = [row.adapter for row in rows]
        if any(row.scored_from is not None for row in rows):
            body["return_logprob"] = True
            body["logprob_start_len"] = [row.scored_from for row in rows]
        found = self.connection.post("/generate", body)
        with _believed(self.connection):
            if not isinstance(found, list) or len(found) != len(rows):
                count = f"{len(found)} answers" if isinstance(found, list) else repr(found)[:100]
                raise _Unexpected(f"{len(rows)} prompts got {count}")
            return [_answer(one, row) for one, row in zip(found, rows, strict=True)]

    def load_adapter(self, name: str, adapter: MemberAdapter, dtype: torch.dtype) -> None:
        """Hand over an adapter in memory, under a name that was never used before.

        Raises:
            Refused: the server does not take it.
        """
        tensors = {key: _apart(tensor, dtype) for key, tensor in adapter.tensors.items()}
        body = {
            "lora_name": name,
            "config_dict": adapter.config(),
            "serialized_named_tensors": [_packed(tensors)] * self._copies,
        }
        try:
            self.connection.post("/load_lora_adapter_from_tensors", body)
        except RequestRefused as refusal:
            # Asked again after the connection broke: the first time had come through.
            if "already loaded" not in refusal.words:
                raise

    def unload_adapter(self, name: str) -> None:
        """Let the server forget an adapter."""
        self.connection.post("/unload_lora_adapter", {"lora_name": name})

    def write(
        self, tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype, version: str
    ) -> None:
        """Write tensors into the weights, by canonical names, and forget all that was computed.

        Args:
            tensors: fp32; they are rounded here, as the server would.
            dtype: of the server's weights.
            version: what the weights are called from now on.
        """
        self._open_session()
        for pairs in _chunks((name, _apart(tensor, dtype)) for name, tensor in tensors):
            body = {
                "serialized_named_tensors": [_packed(pairs)] * self._copies,
                "weight_version": version,
                "flush_cache": True,
            }
            self.connection.post("/update_weights_from_tensor", body)
        self.connection.post("/end_weight_update", {})

    def reload(self, model: str, version: str) -> None:
        """Let the server read its weights from its own disk again."""
        body = {"model_path": model, "weight_version": version, "flush_cache": True}
        self.connection.post("/update_weights_from_disk", body)

    def checksum(self) -> object:
        """Ask for what tells one state of the weights from another."""
        found = self.connection.post("/weights_checker", {"action": "checksum"})
        ranks = found.get("ranks") if isinstance(found, dict) else None
        if not isinstance(ranks, list) or not ranks:
            raise RequestRefused(
                f"{self.connection.name}: no checksums in {str(found)[:100]}", 200, ""
            )
        return [rank.get("checksums") for rank in ranks]

    def is_healthy(self, name: str) -> bool:
        """Ask for a sign of life, which costs the server one token, and whether it is the one.

        Args:
            name: what it was told to call its model; two may have been given the same free port.
        """
        try:
            self.connection.get("/health")
            model = self.connection.get("/model_info")
        except (RequestRefused, EngineLost):
            return False
        return isinstance(model, dict) and model.get("served_model_name") == name

    def _open_session(self) -> None:
        try:
            self.connection.post("/begin_weight_update", {})
        except RequestRefused as refusal:
            if "already open" not in refusal.words:
                raise
            # Left behind by a run that was killed while it wrote.
            self.connection.post("/end_weight_update", {})
            self.connection.post("/begin_weight_update", {})


class _Unexpected(Exception):
    """An answer is not what SGLang answers; the message says how."""


@contextmanager
def _believed(connection: HttpConnection) -> Iterator[None]:
    """Turn an answer that makes no sense into the loss of the engine."""
    try:
        yield
    except _Unexpected as error:
        raise EngineLost(
            f"{connection.name}: its answer makes no sense ({error}): look into its log, and at "
            "what stands between, such as a proxy"
        ) from error


def _server_info(started: Any, model: Any) -> ServerInfo:
    if not isinstance(started, dict) or not isinstance(model, dict):
        raise _Unexpected(f"asked for its settings it says {str(started)[:100]!r}")
    wanted = {"version": str, "tp_size": int, "dp_size": int, "dtype": str}
    for name, kind in wanted.items():
        if not isinstance(started.get(name), kind):
            raise _Unexpected(f"it does not tell its {name}")
    architectures = model.get("architectures") or ["unknown"]
    return ServerInfo(
        version=started["version"],
        model=str(model.get("model_path")),
        architecture=str(architectures[0]),
        weight_version=str(model.get("weight_version")),
        dtype=started["dtype"],
        tensor_parallel=started["tp_size"],
        data_parallel=started["dp_size"],
        adapters=bool(started.get("enable_lora")),
        target_modules=frozenset(started.get("lora_target_modules") or ()),
        max_rank=started.get("max_lora_rank"),
        loadable=started.get("max_loaded_loras"),
        seeds=bool(started.get("enable_deterministic_inference")),
    )


def _answer(found: Any, row: GenerateRequest) -> GenerateResponse:
    try:
        meta = found["meta_info"]
        tokens = tuple(int(token) for token in found["output_ids"])
        spans = meta.get("weight_versions") or [{"version": meta["weight_version"]}]
        versions = frozenset(str(span["version"]) for span in spans)
        scores: tuple[float, ...] = ()
        if row.scored_from is not None:
            # The first has no score: nothing it could follow was looked at.
            scored = meta["input_token_logprobs"][1:]
            scores = tuple(float(score) for score, *_ in scored)
            expected = row.prompt[row.scored_from + 1 :]
            # The last token of a vocabulary is scored like any other, but reported as 0.
            if len(scored) != len(expected) or any(
                label not in (token, 0)
                for (_, label, *_), token in zip(scored, expected, strict=True)
            ):
                raise _Unexpected("it scored other tokens than it was sent")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise _Unexpected(f"{type(error).__name__}: {error} in {str(found)[:100]}") from error
    return GenerateResponse(tokens, versions, scores)


def _apart(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Copy to where nothing else lies: a pickle holds all of the memory a tensor is a part of."""
    return tensor.detach().to("cpu", dtype).clone(memory_format=torch.contiguous_format)


def _packed(tensors: object) -> str:
    return base64.b64encode(pickle.dumps(tensors)).decode("ascii")


def _chunks(pairs: Iterable[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
    """Gather tensors up to `CHUNK_BYTES`; one that is larger goes alone."""
    held: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in pairs:
        if held and size + tensor.nbytes > CHUNK_BYTES:
            yield held
            held, size = [], 0
        held.append((name, tensor))
        size += tensor.nbytes
    if held:
        yield held


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
