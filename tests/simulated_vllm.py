"""A simulated vLLM in this process: it records what the engine `vllm` asks of it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from germline.config import Config, load_config
from germline.engines.master_weights import Masters
from germline.engines.vllm.engine import GenerateRequest
from germline.run.build_parts import make_engine
from germline.types import Decoding, Perturbation
from tests.tiny_engines import folder


@dataclass
class SimulatedLlm:
    """Takes the place of `InProcessLlm`; texts are one token and the end.

    Attributes:
        members: that are registered, by name.
        written: members in the order in which they were written; None is the center.
        requests: every request so far.
        emptied: how often the prefix cache was emptied.
        failure: raised by the next generation.
    """

    members: dict[str, Perturbation | None] = field(default_factory=dict)
    written: list[Perturbation | None] = field(default_factory=list)
    requests: list[GenerateRequest] = field(default_factory=list)
    emptied: int = 0
    failure: Exception | None = None

    def call(self, verb: str, *arguments: Any) -> None:
        getattr(self, verb)(*arguments)

    def generate(
        self, requests: Sequence[GenerateRequest], _decoding: Decoding, end_ids: Sequence[int]
    ) -> list[list[int]]:
        if self.failure:
            raise self.failure
        self._note(requests)
        return [[5, end_ids[0]] for _ in requests]

    def score(
        self, requests: Sequence[GenerateRequest], starts: Sequence[int]
    ) -> list[Sequence[float]]:
        self._note(requests)
        return [self.scored(*one) for one in zip(requests, starts, strict=True)]

    def scored(self, request: GenerateRequest, start: int) -> Sequence[float]:
        return [-float(place) for place in range(start, len(request.tokens))]

    def reset_prefix_cache(self) -> None:
        self.emptied += 1

    def close(self) -> None:
        """Do nothing: nothing runs."""

    def share(self, masters: Masters) -> None:
        """Do nothing: members are not computed."""

    def register(self, members: Mapping[str, Perturbation | None]) -> None:
        self.members |= members

    def clear(self) -> None:
        self.members.clear()

    def apply_member(self, member: Perturbation | None) -> None:
        self.written.append(member)

    def load_base(self) -> None:
        """Do nothing: there are no weights."""

    def _note(self, requests: Sequence[GenerateRequest]) -> None:
        assert {one.adapter for one in requests} <= {None, *self.members}
        self.requests += requests


def config(space: Any = "low_rank", **section: Any) -> Config:
    engine = {"kind": "vllm", **section}
    return load_config({"model": str(folder("qwen2")), "space": space, "engine": engine})


@contextmanager
def opened(simulated: SimulatedLlm, space: Any = "low_rank", **section: Any) -> Iterator[Any]:
    """Make an engine whose vLLM is simulated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("germline.engines.vllm.engine.InProcessLlm", lambda *_: simulated)
        engine: Any = make_engine(config(space, **section))
    with closing(engine):
        yield engine
