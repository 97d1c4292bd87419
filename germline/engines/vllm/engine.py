"""The engine `vllm`: members are named adapters of one batch, or weights written one after another.

vLLM caches by the name and id of an adapter, and by tokens alone: names are never used twice, and
its prefix cache is emptied whenever weights are written.
"""

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence

from germline.config import Config, Vllm
from germline.engines.master_weights import Masters
from germline.engines.pretrained import PretrainedModel
from germline.engines.served_engine import Prompts, ServedEngine, Tokens
from germline.engines.vllm.in_process import GenerateRequest, InProcessLlm
from germline.optimizers import AscentOptimizer
from germline.protocols import Members
from germline.spaces.base import BaseSpace
from germline.types import Decoding, GermlineError, MeanUpdate, Perturbation, Update

log = logging.getLogger(__name__)


class VllmEngine(ServedEngine):
    """Masters and vLLM in this process; with tensor parallelism vLLM's workers are others."""

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
        self._worker_masters: WorkerMasters | None = None
        try:
            if section.tensor_parallel == 1:
                self.llm.call("share", self.weights)
            else:
                self._worker_masters = WorkerMasters(self.llm.call, self.weights, config)
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

    def _sync(self, update: Update | MeanUpdate | None) -> None:
        super()._sync(update)
        if masters := self._worker_masters:
            masters.send() if update is None else masters.apply(update)
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


class WorkerMasters:
    """The masters in vLLM's workers, where these are other processes: kept equal to the engine's.

    At the start the config is sent, then updates: seeds and coefficients. Digests come back.
    Tensors are sent only where the workers cannot know them, as after a snapshot was loaded here.
    """

    def __init__(
        self, call: Callable[..., list[Mapping[str, str]]], masters: Masters, config: Config
    ) -> None:
        self._call = call
        self._masters = masters
        base = masters.base.digest()
        for reply in call("build", config, searched=masters.space is not None):
            if reply["base"] != base:
                raise GermlineError(
                    f"model={masters.base.source}: the workers of vLLM loaded other weights, from "
                    f"{reply['model']} (digest {reply['base'][:16]}, not {base[:16]}): remove the "
                    "model from engine.options"
                )

    def apply(self, update: Update | MeanUpdate) -> None:
        """Apply an update that the engine has applied to its masters already."""
        if not self._are_equal("apply", update):
            log.warning(
                "after generation %d the masters in vLLM's workers differ in their last bits from "
                "those of this process, which the journal records: sending them (the processors "
                "calculate differently)",
                update.generation,
            )
            self.send()

    def send(self) -> None:
        """Send the engine's masters, if the workers' differ."""
        if self._are_equal("digest"):
            return
        for name, tensor in self._masters.state().items():
            # One tensor a call: a call is never larger than the largest tensor.
            self._call("receive", name, tensor.cpu().contiguous())
        if not self._are_equal("restore"):
            raise GermlineError(
                "the masters in vLLM's workers differ from those that were sent: the memory of "
                "this machine is unreliable"
            )

    def _are_equal(self, verb: str, *arguments: object) -> bool:
        digests = {reply["masters"] for reply in self._call(verb, *arguments)}
        return digests == {self._masters.digest()}
