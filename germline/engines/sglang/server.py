"""Members on an SGLang server: adapters in one batch, or weights written one after another.

- low_rank, lora: every member is an adapter with a name of its own, never used before, so that
  nothing that was computed for another is taken for its. The center of low_rank is the weights.
- full, and coordinates: a member is written into the weights, and answers before the next one.

What stands in the server has a name (SGLang's `weight_version`), which comes back with every
answer. Where it is another, the server was restarted or someone else wrote into it: it is looked at
anew, the weights are written again, and the prompts are played again.
"""

import contextlib
import logging
import math
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from germline.config import Config, Sglang
from germline.engines.dtypes import serving_dtype
from germline.engines.master_weights import Masters
from germline.engines.pretrained import PretrainedModel, load_pretrained
from germline.engines.served.completion_decoder import CompletionDecoder
from germline.engines.served.engine import ServedEngine
from germline.engines.served.http_client import HttpConnection, RequestRefused
from germline.engines.served.masters_only import make_masters_only_engine
from germline.engines.served.server_protocol import SamplingRequest, Tokens
from germline.engines.sglang.client import (
    GenerateRequest,
    GenerateResponse,
    ServerInfo,
    SglangClient,
    sampling_params,
)
from germline.engines.sglang.launch import LaunchedServer, launch_device, launch_server
from germline.engines.sglang.server_check import (
    adapter_flags,
    check_base_weights,
    check_server,
    reference_log_probabilities,
    server_dtype,
)
from germline.engines.sglang.write_check import check_writes
from germline.optimizers import AscentOptimizer
from germline.protocols import Space
from germline.types import EngineLost, GermlineError, MeanUpdate, Perturbation, Update

log = logging.getLogger(__name__)

OURS = "germline-"
"""With this begins what weights are called that a run wrote."""
ATTEMPTS = 3
"""So often are prompts played while the weights change under them; then the run stops."""
FORGOTTEN = ("never been loaded", "must run between")
"""What a server says that was restarted in between."""


class SglangServer:
    """Members on one server.

    Args:
        config: which server, or how to start one.
        pretrained: the model, before it is searched.
        dtype: what the server serves in.
    """

    def __init__(self, config: Sglang, pretrained: PretrainedModel, dtype: torch.dtype) -> None:
        self._config = config
        self._model = pretrained.model
        self._source = pretrained.source
        self._dtype = dtype
        self._reference = reference_log_probabilities(pretrained.model)
        self._tokenizer = pretrained.tokenizer
        self._launched: LaunchedServer | None = None
        self._run = f"{OURS}{uuid.uuid4().hex[:12]}"
        self._names = 0
        self._version = ""
        self._standing: tuple[Perturbation | None] | None = None
        self._has_written = False
        self._has_told_of_luck = False

    def begin(self, masters: Masters) -> None:
        """Make sure that the server has the base model of these masters, and can play members."""
        self._masters = masters
        self._writes = bool(masters.changed_weights())
        if self._config.launch:
            self._launch()
        else:
            self._client = SglangClient(connect(self._config))
        self._meet()
        if self._writes:
            self._say_what_it_costs()
            self._has_written = True
            check_writes(self._client, masters, self._dtype, self._new_name)
        self._client.connection.retry_timeout_s = self._config.retry_timeout_s

    def generate(
        self,
        members: Sequence[Perturbation | None],
        prompts: Sequence[Tokens],
        sampling: SamplingRequest,
    ) -> list[list[Tokens]]:
        """Let every member go on from every prompt; see the seam."""
        self._say_what_luck_is(sampling)
        # Where the server sees a stop string that is none to the tokenizer here, texts are written
        # again without: they are cut in any case, by texts.py.
        for stop in dict.fromkeys((sampling.decoding.stop, ())):
            settings = [sampling_params(sampling, seed, stop) for seed in sampling.seeds]
            rows = [GenerateRequest(p, None, one) for p, one in zip(prompts, settings, strict=True)]
            answers = self._play(members, [rows] * len(members))
            texts: list[list[Tokens]] = [[answer.tokens for answer in row] for row in answers]
            short = [one for row in texts for one in row if self._stops_short(one, sampling)]
            if not short:
                return texts
        raise GermlineError(
            f"{self._client.connection.name}: a text ended after {len(short[0])} of "
            f"{sampling.decoding.max_new_tokens} tokens, where nothing ends one of this model's: "
            "the server has another tokenizer or generation_config.json, or gave up (look into its "
            "log)"
        )

    def _stops_short(self, tokens: Tokens, sampling: SamplingRequest) -> bool:
        decoding = sampling.decoding
        if len(tokens) >= decoding.max_new_tokens or (tokens and tokens[-1] in sampling.end_ids):
            return False
        texts = CompletionDecoder(self._tokenizer, frozenset(sampling.end_ids))
        return texts.completion(tokens, 0, decoding).finish == "length"

    def log_probabilities(
        self,
        members: Sequence[Perturbation | None],
        prompts: Sequence[Tokens],
        written: Sequence[Sequence[Tokens]],
    ) -> list[list[Sequence[float]]]:
        """Return how likely members find each token of `written[members][prompts]`."""
        nothing = {"max_new_tokens": 0, "temperature": 0.0}
        rows = [
            [
                GenerateRequest([*prompt, *tokens], None, nothing, scored_from=len(prompt) - 1)
                for prompt, tokens in zip(prompts, texts, strict=True)
            ]
            for texts in written
        ]
        answers = self._play(members, rows)
        return [[answer.scores for answer in row] for row in answers]

    def apply(self, update: Update | MeanUpdate) -> None:
        """Note that the masters have moved; the server follows when it is next asked."""
        self._standing = None

    def refresh(self) -> None:
        """Note that the masters are others."""
        self._standing = None

    def close(self) -> None:
        """End a server of the run's own; give a user's server its own weights back."""
        if self._launched is not None:
            self._launched.stop()
        elif self._has_written:
            self._client.connection.retry_timeout_s = 0.0
            with contextlib.suppress(GermlineError):
                self._client.reload(self._info.model, self._found_version)
        self._launched, self._has_written = None, False

    def _launch(self) -> None:
        flags = adapter_flags(self._masters) if self._masters.has_adapter_members else []
        self._launched = launched = launch_server(self._config, self._source, self._dtype, flags)
        name = f"the SGLang server of this run ({launched.url})"
        timeout_s = self._config.timeout_s
        self._client = SglangClient(
            HttpConnection(name, launched.url, timeout_s, look=launched.look)
        )
        launched.wait(
            partial(self._client.is_healthy, launched.name), self._config.startup_timeout_s
        )

    def _say_what_it_costs(self) -> None:
        if self._masters.has_adapter_members:
            return
        numbers = sum(math.prod(info.shape) for info in self._masters.changed_weights())
        log.warning(
            "engine=sglang writes every member into the server one after another: %.4g MB each; "
            "space.kind=low_rank sends a small adapter for each, and plays all in one batch",
            numbers * self._dtype.itemsize / 1e6,
        )

    def _meet(self) -> None:
        """Look at the server, and bring it to the base weights where a run left its own there."""
        self._info = info = self._client.info()
        self._found_version = info.weight_version
        if info.weight_version.startswith(OURS):
            log.warning(
                "%s: a run left its weights there; they are read from %s again",
                *(self._client.connection.name, info.model),
            )
            self._found_version = "default"
            self._client.reload(info.model, self._found_version)
        check_base_weights(self._client, info, self._model, self._reference, self._dtype)
        if self._launched is None and info.model != self._source:
            log.warning(
                "%s serves %s, the run has model=%s: their texts agree within rounding",
                *(self._client.connection.name, info.model, self._source),
            )
        check_server(info, self._masters)
        self._version, self._standing = self._found_version, None

    def _play(
        self, members: Sequence[Perturbation | None], rows: Sequence[Sequence[GenerateRequest]]
    ) -> list[list[GenerateResponse]]:
        """Let members answer rows of their own, as many members at a time as can stand there."""
        found: list[list[GenerateResponse]] = []
        size = self._together(len(members))
        for start in range(0, len(members), size):
            found += self._insist(members[start : start + size], rows[start : start + size])
        return found

    def _together(self, members: int) -> int:
        if not self._masters.has_adapter_members:
            return 1
        limits = (self._config.adapters, self._info.loadable)
        return min([max(1, members), *(limit for limit in limits if isinstance(limit, int))])

    def _insist(
        self, members: Sequence[Perturbation | None], rows: Sequence[Sequence[GenerateRequest]]
    ) -> list[list[GenerateResponse]]:
        """Play until the weights that wrote all answers are those that should have."""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._meet()
            try:
                found = self._ask(members, rows)
            except RequestRefused as refusal:
                if attempt == ATTEMPTS - 1 or not any(w in refusal.words for w in FORGOTTEN):
                    raise
                continue
            versions = {version for row in found for one in row for version in one.versions}
            if versions <= {self._version}:
                return found
            log.warning(
                "%s: answers came from weights called %s, not %s: played again",
                *(self._client.connection.name, ", ".join(sorted(versions)), self._version),
            )
        raise EngineLost(
            f"{self._client.connection.name}: its weights changed while members were played, "
            f"{ATTEMPTS} times: another run writes into the same server; give each its own"
        )

    def _ask(
        self, members: Sequence[Perturbation | None], rows: Sequence[Sequence[GenerateRequest]]
    ) -> list[list[GenerateResponse]]:
        if self._masters.has_adapter_members:
            self._stand(None)
            with self._loaded(members) as names:
                return self._answers(names, rows)
        (member,) = members
        self._stand(member)
        return self._answers([None], rows)

    def _stand(self, member: Perturbation | None) -> None:
        """Write a member (None: the center) into the weights, unless it stands there already."""
        if not self._writes or self._standing == (member,):
            return
        self._standing = None
        self._has_written = True
        version = self._new_name()
        self._client.write(self._masters.written_tensors(member), self._dtype, version)
        self._standing, self._version = (member,), version

    @contextlib.contextmanager
    def _loaded(self, members: Sequence[Perturbation | None]) -> Iterator[list[str | None]]:
        """Hand over the adapters of members, and name them; None where the weights are enough."""
        is_adapter = bool(self._masters.adapted)
        with contextlib.ExitStack() as loaded:
            names: list[str | None] = []
            try:
                for member, adapter in zip(
                    members, self._masters.member_adapters(members), strict=True
                ):
                    if member is None and not is_adapter:
                        names.append(None)
                        continue
                    name = self._new_name()
                    self._client.load_adapter(name, adapter, self._dtype)
                    loaded.callback(self._unload, name)
                    names.append(name)
                yield names
            except EngineLost:
                loaded.pop_all()  # there is nobody who could be asked, or have patience with
                raise

    def _unload(self, name: str) -> None:
        with contextlib.suppress(GermlineError):
            self._client.unload_adapter(name)

    def _answers(
        self, names: Sequence[str | None], rows: Sequence[Sequence[GenerateRequest]]
    ) -> list[list[GenerateResponse]]:
        flat = [
            replace(row, adapter=name) for name, own in zip(names, rows, strict=True) for row in own
        ]
        found = iter(self._client.generate(flat))
        return [[next(found) for _ in own] for own in rows]

    def _say_what_luck_is(self, sampling: SamplingRequest) -> None:
        if sampling.decoding.temperature > 0 and not (self._info.seeds or self._has_told_of_luck):
            self._has_told_of_luck = True
            log.warning(
                "task.temperature=%g: the server ignores the seeds of sampling, so members have "
                "luck of their own, and a run is not repeated by its seed: start it with "
                "--enable-deterministic-inference (of a launched one: engine.options)",
                sampling.decoding.temperature,
            )

    def _new_name(self) -> str:
        self._names += 1
        return f"{self._run}-{self._names}"


class SglangEngine(ServedEngine):
    """Masters in this process, and an SGLang server of their copy."""

    @classmethod
    def from_config(
        cls,
        config: Config,
        source: str,
        space: Space | None,
        optimizer: AscentOptimizer,
        *,
        generates: bool = True,
    ) -> ServedEngine:
        """Construct it from the config of a run: connect to a server, or launch one.

        Raises:
            GermlineError: there is no server, or another one than the run needs.
        """
        section = config.engine
        assert isinstance(section, Sglang)
        pretrained = load_pretrained(source)
        if not generates:
            return make_masters_only_engine(config, pretrained, space, optimizer)
        stored = pretrained.stored_dtype
        if section.launch:
            dtype = serving_dtype(section.dtype, stored, on_gpu=launch_device(section) != "cpu")
        else:
            dtype = server_dtype(_found(section, pretrained.source), section.dtype, stored)
        server = SglangServer(section, pretrained, dtype)
        return cls(pretrained, space, optimizer, config.search.unit, server, dtype)


def _found(config: Sglang, source: str) -> ServerInfo:
    try:
        return SglangClient(connect(config)).info()
    except EngineLost as lost:
        raise GermlineError(
            f"{lost}. Start a server there (docs/engines.md): python -m sglang.launch_server "
            f"--model-path {source} --enable-lora ...; or let the run start one: engine.launch=true"
        ) from lost


def connect(config: Sglang) -> HttpConnection:
    """Return the way to the server of a user, who is not asked for patience yet."""
    url = config.base_url or ""
    return HttpConnection(f"engine.base_url={url}", url, config.timeout_s)
