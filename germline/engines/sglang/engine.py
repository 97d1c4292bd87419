"""The engine `sglang`: members are adapters of one batch, or weights written one after another.

An adapter gets a name that was never used before, so that no cache contains anything of another
member; the center of low_rank needs none. Each state of the server's weights has a name (SGLang's
`weight_version`), which every response contains. If a response has another name, the server was
restarted or another client wrote into it: the engine inspects the server again, writes the weights
again and repeats the request.
"""

import contextlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from functools import partial

from germline.config import Config, Sglang
from germline.engines.http_client import HttpConnection, RequestRefused
from germline.engines.model_tensors import serving_dtype
from germline.engines.pretrained import PretrainedModel
from germline.engines.rows_in_progress import cut_completion
from germline.engines.served_engine import Prompts, ServedEngine, Tokens
from germline.engines.sglang.client import (
    GenerateRequest,
    GenerateResponse,
    SglangClient,
    sampling_params,
)
from germline.engines.sglang.server import (
    LaunchedServer,
    adapter_flags,
    check_base_weights,
    check_writes,
    launch_device,
    launch_server,
    reference_log_probabilities,
    server_dtype,
)
from germline.optimizers import AscentOptimizer
from germline.protocols import Members
from germline.spaces.base import BaseSpace, MemberAdapter
from germline.types import Decoding, EngineLost, GermlineError, Perturbation

log = logging.getLogger(__name__)

VERSION_PREFIX = "germline-"
"""Prefix of the weight versions that runs write."""
ATTEMPTS = 3
"""How often a request is sent while the server's weights change; then the run stops."""
RESTART_REASONS = ("never been loaded", "must run between")
"""Reasons with which a server refuses a request after it was restarted."""

Requests = Sequence[Sequence[GenerateRequest]]
Responses = list[list[GenerateResponse]]


class SglangEngine(ServedEngine):
    """Masters in this process, and one SGLang server, a user's or one started for the run."""

    def __init__(
        self,
        config: Config,
        pretrained: PretrainedModel,
        space: BaseSpace | None,
        optimizer: AscentOptimizer,
    ) -> None:
        section = config.engine
        assert isinstance(section, Sglang)
        self._section = section
        if section.launch:
            on_gpu = launch_device(section) != "cpu"
            dtype = serving_dtype(section.dtype, pretrained.stored_dtype, on_gpu=on_gpu)
        else:
            url = section.base_url or ""
            # Without retries until the server was found.
            connection = HttpConnection(f"engine.base_url={url}", url, section.timeout_s)
            self._client = SglangClient(connection)
            dtype = server_dtype(self._client.info(), section.dtype, pretrained.stored_dtype)
        # Before the masters are made of the model, which turns its parameters into fp32.
        self._reference = reference_log_probabilities(pretrained.model)
        super().__init__(config, pretrained, space, optimizer, dtype)
        self._launched: LaunchedServer | None = None
        self._run = f"{VERSION_PREFIX}{uuid.uuid4().hex[:12]}"
        self._names_used = 0
        self._version = ""
        self._has_written = False
        self._warned_of_seeds = False
        self._kept: dict[Perturbation | None, str | None] = {}
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop a server of the run's own; give a user's server its own weights back."""
        if self._launched is not None:
            self._launched.stop()
        elif self._has_written:
            self._client.connection.retry_timeout_s = 0.0
            with contextlib.suppress(GermlineError):
                self._client.reload(self._info.model_path, self._original_version)
        self._launched, self._has_written = None, False

    def _open(self) -> None:
        if self._section.launch:
            flags = adapter_flags(self.weights) if self._adapters else []
            self._launched = launched = launch_server(
                self._section, self.pretrained.source, self.dtype, flags
            )
            name = f"the SGLang server of this run ({launched.url})"
            connection = HttpConnection(
                name, launched.url, self._section.timeout_s, check_alive=launched.check_alive
            )
            self._client = SglangClient(connection)
            launched.wait(self._client.is_healthy, self._section.startup_timeout_s)
        self._inspect_server()
        if self._writes:
            self._has_written = True
            check_writes(self._client, self.weights, self.dtype, self._new_name)
        self._client.connection.retry_timeout_s = self._section.retry_timeout_s

    def _inspect_server(self) -> None:
        """Check the server, and make it reload its weights where an earlier run left its own."""
        self._info = info = self._client.info()
        self._original_version = info.weight_version
        if info.weight_version.startswith(VERSION_PREFIX):
            log.warning(
                "%s: an earlier run left its weights in the server; the server reads %s again",
                *(self._client.connection.name, info.model_path),
            )
            self._original_version = "default"
            self._client.reload(info.model_path, self._original_version)
        check_base_weights(self._client, info, self.pretrained.model, self._reference, self.dtype)
        self._version, self._written = self._original_version, None

    def _served_at_once(self) -> int | None:
        if not self._adapters:
            return 1
        limits = (self._section.adapters, self._info.max_loaded_loras)
        return min((one for one in limits if isinstance(one, int)), default=None)

    @contextlib.contextmanager
    def _kept_loaded(self, members: Members) -> Iterator[None]:
        """Keep the adapters of members loaded; a written member stays until another is written."""
        if not self._adapters:
            yield
            return
        self._write(None)
        with self._loaded(members) as names:
            self._kept = dict(zip(members, names, strict=True))
            try:
                yield
            finally:
                self._kept = {}

    def _generate_tokens(
        self, members: Members, prompts: Prompts, decoding: Decoding
    ) -> list[list[Tokens]]:
        self._warn_of_seeds(decoding)
        # The server may find a stop string where the tokenizer here finds none; then the texts are
        # generated again without stop strings. `cut_completion` cuts them in any case.
        for stop in dict.fromkeys((decoding.stop, ())):
            params = partial(sampling_params, decoding, self.end_ids, stop=stop)
            requests = [
                [GenerateRequest(prompt, params(seed)) for prompt, seed in row] for row in prompts
            ]
            responses = self._evaluate(members, requests)
            texts: list[list[Tokens]] = [[one.tokens for one in row] for row in responses]
            short = [tokens for row in texts for tokens in row if self._is_short(tokens, decoding)]
            if not short:
                return texts
        raise GermlineError(
            f"{self._client.connection.name}: a text ended after {len(short[0])} of "
            f"{decoding.max_new_tokens} tokens, without a token or stop string that ends one: the "
            "server has another tokenizer or generation_config.json, or gave up (look into its log)"
        )

    def _is_short(self, tokens: Tokens, decoding: Decoding) -> bool:
        """Tell whether a text ended before its maximum length for no reason known here."""
        if len(tokens) >= decoding.max_new_tokens or (tokens and tokens[-1] in self.end_ids):
            return False
        return cut_completion(self.detokenize, tokens, 0, decoding).finish == "length"

    def _score_tokens(
        self, members: Members, prompts: Sequence[Tokens], written: Sequence[Sequence[Tokens]]
    ) -> list[list[Sequence[float]]]:
        requests = [
            [
                GenerateRequest.to_score([*prompt, *tokens], len(prompt) - 1)
                for prompt, tokens in zip(prompts, texts, strict=True)
            ]
            for texts in written
        ]
        return [[one.scores for one in row] for row in self._evaluate(members, requests)]

    def _evaluate(self, members: Members, requests: Requests) -> Responses:
        """Repeat the requests until all responses come from the weights that were written."""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._inspect_server()
                self._kept = {}  # of a server that may have been restarted
            try:
                responses = self._send(members, requests)
            except RequestRefused as refusal:
                restarted = any(reason in refusal.reason for reason in RESTART_REASONS)
                if attempt == ATTEMPTS - 1 or not restarted:
                    raise
                continue
            versions = {version for row in responses for one in row for version in one.versions}
            if versions <= {self._version}:
                return responses
            log.warning(
                "%s: responses came from weights called %s, not %s: the requests are repeated",
                *(self._client.connection.name, ", ".join(sorted(versions)), self._version),
            )
        raise EngineLost(
            f"{self._client.connection.name}: its weights changed during an evaluation, "
            f"{ATTEMPTS} times: another run writes into the same server; give each run its own"
        )

    def _send(self, members: Members, requests: Requests) -> Responses:
        if not self._adapters:
            (member,) = members
            self._write(member)
            return self._send_named([None], requests)
        if all(member in self._kept for member in members):
            return self._send_named([self._kept[member] for member in members], requests)
        self._write(None)
        with self._loaded(members) as names:
            return self._send_named(names, requests)

    def _send_named(self, names: Sequence[str | None], requests: Requests) -> Responses:
        adapters = [name for name, row in zip(names, requests, strict=True) for _ in row]
        flat = [request for row in requests for request in row]
        responses = iter(self._client.generate(flat, adapters))
        return [[next(responses) for _ in row] for row in requests]

    def _write_weights(self, member: Perturbation | None) -> None:
        self._has_written = True
        version = self._new_name()
        self._client.write(self.weights.written_tensors(member), self.dtype, version)
        self._version = version

    @contextlib.contextmanager
    def _loaded(self, members: Members) -> Iterator[list[str | None]]:
        """Load the adapters of members, and yield their names; None for the bare weights."""
        with contextlib.ExitStack() as loaded:
            names: list[str | None] = []
            try:
                for member, adapter in zip(
                    members, self.weights.member_adapters(members), strict=True
                ):
                    bare = member is None and not self.weights.adapted
                    names.append(None if bare else self._load(adapter))
                    loaded.callback(self._unload, names[-1])
                yield names
            except EngineLost:
                loaded.pop_all()  # no request to a server that is gone
                raise

    def _load(self, adapter: MemberAdapter) -> str:
        name = self._new_name()
        try:
            self._client.load_adapter(name, adapter, self.dtype)
        except RequestRefused as refusal:
            flags = " ".join(adapter_flags(self.weights))
            raise GermlineError(f"{refusal}. Start the server with {flags}") from refusal
        return name

    def _unload(self, name: str | None) -> None:
        with contextlib.suppress(GermlineError):
            if name is not None:
                self._client.unload_adapter(name)

    def _new_name(self) -> str:
        self._names_used += 1
        return f"{self._run}-{self._names_used}"

    def _warn_of_seeds(self, decoding: Decoding) -> None:
        ignored = decoding.temperature > 0 and not self._info.enable_deterministic_inference
        if ignored and not self._warned_of_seeds:
            self._warned_of_seeds = True
            log.warning(
                "task.temperature=%g: the server ignores sampling seeds, so members do not share "
                "their sampling noise, and the run's seed does not repeat it: start the server "
                "with --enable-deterministic-inference (a launched one: engine.options)",
                decoding.temperature,
            )
