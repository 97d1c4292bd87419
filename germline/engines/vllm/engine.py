"""The engine `vllm`: members are adapters of one batch, or weights written one after another.

Adapters get a name that was never used before whenever the weights have changed, and the prefix
cache is emptied then: what vLLM has cached of a prompt is never used with other weights. The center
is evaluated as an adapter too, a zero one in `low_rank`: on a CPU, vLLM 0.32 applies the adapter of
another row to rows without an adapter.
"""

import contextlib
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from germline.config import Config, Vllm
from germline.engines.pretrained import PretrainedModel
from germline.engines.served.engine import Prompts, SamplingRequest, ServedEngine, Tokens
from germline.engines.served.masters_spec import write_spec
from germline.engines.served.serialization import write_members
from germline.engines.vllm.in_process import InProcessTransport
from germline.engines.vllm.over_http import HttpTransport
from germline.engines.vllm.support_check import check_head_size
from germline.engines.vllm.transport import GenerateRequest, Transport
from germline.optimizers import AscentOptimizer
from germline.protocols import Members, Space
from germline.types import MeanUpdate, Perturbation, Update

log = logging.getLogger(__name__)

T = TypeVar("T")

MEMBERS_PER_SCORING = 9
"""Members scored at once: the center and four pairs; a pair shares its noise."""


class VllmEngine(ServedEngine):
    """Masters in this process, and vLLM in this process or behind `engine.base_url`.

    Args:
        config: of the run.
        pretrained: the model, whose weights become the masters.
        space: what is searched; None serves the center alone.
        optimizer: of the masters.

    Raises:
        GermlineError: vLLM is not installed, cannot be started or reached, or serves another model.
    """

    def __init__(
        self,
        config: Config,
        pretrained: PretrainedModel,
        space: Space | None,
        optimizer: AscentOptimizer,
    ) -> None:
        section = config.engine
        assert isinstance(section, Vllm)
        if not (section.base_url or torch.cuda.is_available()):
            check_head_size(pretrained.model.config)
        super().__init__(config, pretrained, space, optimizer)
        self._names: dict[Perturbation | None, str] = {}
        self._names_used = 0
        self._weight_changes = 0
        self._kept: Perturbation | None = None
        self._warn_of_sequential_writes()
        spec = write_spec(config, searched=space is not None)
        transport = HttpTransport if section.base_url else InProcessTransport
        self.transport: Transport = transport(section, self.weights, self.dtype, spec)
        try:
            self.transport.call("load_base")
            self.refresh()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free vLLM's memory; a user's server gets its own weights back."""
        self.transport.close()

    @contextlib.contextmanager
    def _served(self, members: Members) -> Iterator[None]:
        """Keep a member written; adapters stay in vLLM until the weights change."""
        if self._adapters:
            yield
            return
        (member,) = members
        with self._written(member):
            self._kept = member
            try:
                yield
            finally:
                self._kept = None

    def _generate_tokens(
        self, members: Members, prompts: Prompts, sampling: SamplingRequest
    ) -> list[list[Tokens]]:
        def generate(first: int, names: Sequence[str | None]) -> list[Tokens]:
            requests = [
                GenerateRequest(name, prompt.seed, prompt.tokens)
                for member, name in enumerate(names, first)
                for prompt in prompts[member]
            ]
            return self.transport.generate(requests, sampling)

        return self._evaluate(members, [*map(len, prompts)], generate)

    def _score_tokens(
        self,
        members: Sequence[Perturbation | None],
        prompts: Sequence[Tokens],
        written: Sequence[Sequence[Tokens]],
    ) -> list[list[Sequence[float]]]:
        """Score a few members at a time, and unload the adapters that were made for them.

        A calibration of sigma scores other members in every trial, 129 in all, for which a server
        needs no adapter slots this way.
        """
        scores: list[list[Sequence[float]]] = []
        for start in range(0, len(members), MEMBERS_PER_SCORING):
            group = members[start : start + MEMBERS_PER_SCORING]
            known = set(self._names)
            scores += self._score_group(
                group, prompts, written[start : start + MEMBERS_PER_SCORING]
            )
            self._unload([member for member in group if member not in known])
        return scores

    def _score_group(
        self,
        members: Sequence[Perturbation | None],
        prompts: Sequence[Tokens],
        written: Sequence[Sequence[Tokens]],
    ) -> list[list[Sequence[float]]]:
        def score(first: int, names: Sequence[str | None]) -> list[Sequence[float]]:
            requests = [
                GenerateRequest(name, 0, [*prompt, *tokens])
                for member, name in enumerate(names, first)
                for prompt, tokens in zip(prompts, written[member], strict=True)
            ]
            starts = [len(prompt) for _ in names for prompt in prompts]
            return self.transport.score(requests, starts)

        return self._evaluate(members, [len(prompts)] * len(members), score)

    def _sync(self, update: Update | MeanUpdate | None) -> None:
        if masters := self.transport.worker_masters:
            masters.send() if update is None else masters.apply(update)
        self.transport.call("clear")
        self.transport.unload_adapters(list(self._names.values()))
        self._names.clear()
        self._names_used = 0
        self._weight_changes += 1
        if self._writes:
            self._write(None)
        else:
            self.transport.reset_prefix_cache()

    def _evaluate(
        self,
        members: Sequence[Perturbation | None],
        prompts: Sequence[int],
        evaluate: Callable[[int, Sequence[str | None]], list[T]],
    ) -> list[list[T]]:
        """Evaluate all members at once as adapters, or one after another as written weights.

        Args:
            members: None is the center.
            prompts: number of results of each member.
            evaluate: takes the index of the first member and the adapter names of some members.
        """
        results: list[T] = []
        if self._adapters:
            results += evaluate(0, self._register(members))
        else:
            for index, member in enumerate(members):
                with self._written(member):
                    results += evaluate(index, [None])
        ends = list(itertools.accumulate(prompts))
        return [results[end - count : end] for count, end in zip(prompts, ends, strict=True)]

    def _register(self, members: Sequence[Perturbation | None]) -> list[str]:
        """Return the adapter names of members, new ones for members without a name."""
        new = [member for member in dict.fromkeys(members) if member not in self._names]
        # No name is used twice: vLLM would take the adapter it has cached under the name.
        names = {
            member: f"{self._weight_changes}-{self._names_used + number}"
            for number, member in enumerate(new)
        }
        self._names_used += len(new)
        if names:
            self.transport.call("register", write_members({names[one]: one for one in new}))
            self._names |= names
        return [self._names[member] for member in members]

    def _unload(self, members: Sequence[Perturbation | None]) -> None:
        """Unload the adapters of members."""
        names = [
            self._names.pop(member) for member in dict.fromkeys(members) if member in self._names
        ]
        if names:
            self.transport.unload_adapters(names)

    @contextlib.contextmanager
    def _written(self, member: Perturbation | None) -> Iterator[None]:
        """Write a member into the served weights, and the center at the end."""
        if member is None or member == self._kept:
            yield
            return
        self._write(member)
        try:
            yield
        finally:
            self._write(None)

    def _write(self, member: Perturbation | None) -> None:
        self.transport.call("apply_member", write_members({"who": member}))
        self.transport.reset_prefix_cache()

    def _warn_of_sequential_writes(self) -> None:
        if self._writes and not self._adapters:
            infos = self.weights.changed_weights()
            log.warning(
                "members are written into vLLM one after another, %.0f MB each: "
                "space.kind=low_rank or lora evaluates all members of a microbatch in one batch",
                4e-6 * sum(math.prod(info.shape) for info in infos),
            )
