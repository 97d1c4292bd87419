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

from germline.config import Config, Vllm
from germline.engines.pretrained import PretrainedModel
from germline.engines.served.engine import Prompts, SamplingRequest, ServedEngine, Tokens
from germline.engines.vllm.in_process import GenerateRequest, InProcessLlm
from germline.engines.vllm.worker_masters import WorkerMasters
from germline.optimizers import AscentOptimizer
from germline.protocols import Members, Space
from germline.types import MeanUpdate, Perturbation, Update

log = logging.getLogger(__name__)

T = TypeVar("T")


class VllmEngine(ServedEngine):
    """Masters and vLLM in this process; with tensor parallelism vLLM's workers are other processes.

    Args:
        config: of the run.
        pretrained: the model, whose weights become the masters.
        space: what is searched; None serves the center alone.
        optimizer: of the masters.

    Raises:
        GermlineError: vLLM is not installed, or cannot be started or serve the model.
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
        super().__init__(config, pretrained, space, optimizer)
        self._names: dict[Perturbation | None, str] = {}
        self._unused_names = map(str, itertools.count())
        self._kept: Perturbation | None = None
        self._warn_of_sequential_writes()
        self.llm = InProcessLlm(section, self.weights, self.dtype)
        self._worker_masters: WorkerMasters | None = None
        try:
            if section.tensor_parallel == 1:
                self.llm.call("share", self.weights)
            else:
                self._worker_masters = WorkerMasters(self.llm.call, self.weights, config)
            self.llm.call("load_base")
            self.refresh()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free vLLM's memory."""
        self.llm.close()

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
            return self.llm.generate(requests, sampling)

        return self._evaluate(members, [*map(len, prompts)], generate)

    def _score_tokens(
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
            return self.llm.score(requests, starts)

        return self._evaluate(members, [len(prompts)] * len(members), score)

    def _sync(self, update: Update | MeanUpdate | None) -> None:
        if masters := self._worker_masters:
            masters.send() if update is None else masters.apply(update)
        self.llm.call("clear")
        self.llm.forget_adapters()
        self._names.clear()
        if self._writes:
            self._write(None)
        else:
            self.llm.reset_prefix_cache()

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
        names = dict(zip(new, self._unused_names, strict=False))
        if names:
            self.llm.call("register", {names[one]: one for one in new})
            self._names |= names
        return [self._names[member] for member in members]

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
        self.llm.call("apply_member", member)
        self.llm.reset_prefix_cache()

    def _warn_of_sequential_writes(self) -> None:
        if self._writes and not self._adapters:
            infos = self.weights.changed_weights()
            log.warning(
                "members are written into vLLM one after another, %.0f MB each: "
                "space.kind=low_rank or lora evaluates all members of a microbatch in one batch",
                4e-6 * sum(math.prod(info.shape) for info in infos),
            )
