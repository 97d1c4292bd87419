"""vLLM as a server of members: adapters in one batch, or whole tensors one member after another.

Adapters get a name that was never used before whenever the weights have changed, and the cache of
prefixes is emptied then: what vLLM remembers of a prompt never meets other weights. The center
plays as an adapter too, a zero one in `low_rank`: on a CPU, vLLM gives rows without an adapter
another row's.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from germline.engines.master_weights import Masters
from germline.engines.served.serialization import write_members
from germline.engines.served.server_protocol import SamplingRequest, Tokens
from germline.types import EngineLost, GermlineError, MeanUpdate, Perturbation, Update

log = logging.getLogger(__name__)

T = TypeVar("T")

ADAPTER_PATH = "germline:"
"""How the path of an adapter begins that vLLM's worker draws; its name follows."""


class GenerateRequest(NamedTuple):
    """One prompt to go on from.

    Attributes:
        adapter: the name of who plays it; None: the weights as they stand.
        place: of the prompt in its batch.
    """

    adapter: str | None
    place: int
    tokens: Tokens


@runtime_checkable
class Transport(Protocol):
    """One way to reach vLLM; `inside.VERBS` is what can be called."""

    def open(self, masters: Masters) -> None:
        """Start or find vLLM, and let its workers have masters equal to these."""

    def call(self, verb: str, *texts: str) -> None:
        """Ask all workers for something."""

    def follow(self, update: Update | MeanUpdate) -> None:
        """Let the workers' masters move as the engine's have."""

    def send(self) -> None:
        """Let the workers' masters be as the engine's are."""

    def play(self, rows: Sequence[GenerateRequest], sampling: SamplingRequest) -> list[Tokens]:
        """Go on from every row."""

    def read(
        self, rows: Sequence[GenerateRequest], prompts: Sequence[int]
    ) -> list[Sequence[float]]:
        """Return how likely each token is behind so many of a row, its natural logarithm."""

    def forget_prefixes(self) -> None:
        """Empty the cache of prefixes."""

    def forget_adapters(self, names: Sequence[str]) -> None:
        """Be told that these names will not be played again."""

    def close(self) -> None:
        """End what `open` started."""


def check_worker_replies(answers: Sequence[dict[str, Any]]) -> None:
    """Raise what a worker says is wrong.

    Raises:
        GermlineError: one of them says so.
        EngineLost: it says that it is not the one that was begun with.
    """
    for answer in answers:
        if "lost" in answer:
            raise EngineLost(str(answer["lost"]))
        if "error" in answer:
            raise GermlineError(str(answer["error"]))


READ_AT_ONCE = 9
"""Members that read texts at once: the center and four pairs, as a pair shares what is drawn."""


class VllmServer:
    """Evaluates members through a transport."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._names: dict[Perturbation | None, str] = {}
        self._named_so_far = 0
        self._changes = 0

    def begin(self, masters: Masters) -> None:
        """Start or find vLLM, and make sure that it serves the base model of these masters."""
        self._adapters = masters.has_adapter_members
        infos = masters.changed_weights()
        self._written = bool(infos)
        if self._written and not self._adapters:
            log.warning(
                "members are written into vLLM one after another, %.0f MB each: "
                "space.kind=low_rank or lora plays all members of a microbatch in one batch",
                4e-6 * sum(math.prod(info.shape) for info in infos),
            )
        self.transport.open(masters)
        self.transport.call("load_base")
        self.refresh()

    def generate(
        self,
        members: Sequence[Perturbation | None],
        prompts: Sequence[Tokens],
        sampling: SamplingRequest,
    ) -> list[list[Tokens]]:
        """Let every member go on from every prompt: `[members][prompts]`."""

        def play(first: int, names: Sequence[str | None]) -> list[Tokens]:
            rows = [
                GenerateRequest(name, place, one)
                for name in names
                for place, one in enumerate(prompts)
            ]
            return self.transport.play(rows, sampling)

        return self._played(members, len(prompts), play)

    def log_probabilities(
        self,
        members: Sequence[Perturbation | None],
        prompts: Sequence[Tokens],
        written: Sequence[Sequence[Tokens]],
    ) -> list[list[Sequence[float]]]:
        """Return how likely members find each token of `written[members][prompts]`: its log.

        Members are read a few at a time, and the adapters that were made for it are unloaded: a
        calibration tries other members each time, 129 in all, which a server needs no room for.
        """
        found: list[list[Sequence[float]]] = []
        for start in range(0, len(members), READ_AT_ONCE):
            group = members[start : start + READ_AT_ONCE]
            known = set(self._names)
            found += self._read(group, prompts, written[start : start + READ_AT_ONCE])
            self._forget([one for one in group if one not in known])
        return found

    def _read(
        self,
        members: Sequence[Perturbation | None],
        prompts: Sequence[Tokens],
        written: Sequence[Sequence[Tokens]],
    ) -> list[list[Sequence[float]]]:
        def read(first: int, names: Sequence[str | None]) -> list[Sequence[float]]:
            rows = [
                GenerateRequest(name, place, [*prompt, *written[member][place]])
                for member, name in enumerate(names, first)
                for place, prompt in enumerate(prompts)
            ]
            return self.transport.read(rows, [len(prompts[row.place]) for row in rows])

        return self._played(members, len(prompts), read)

    def apply(self, update: Update | MeanUpdate) -> None:
        """Serve the center after an update."""
        self.transport.follow(update)
        self._changed()

    def refresh(self) -> None:
        """Serve the masters as they are."""
        self.transport.send()
        self._changed()

    def close(self) -> None:
        """End what was started."""
        self.transport.close()

    def _played(
        self,
        members: Sequence[Perturbation | None],
        prompts: int,
        play: Callable[[int, Sequence[str | None]], list[T]],
    ) -> list[list[T]]:
        """Let members stand, and play: all of them at once where they are adapters."""
        if self._adapters:
            found = play(0, self._named(members))
        else:
            found = []
            for first, member in enumerate(members):
                with self._standing(member):
                    found += play(first, [None])
        return [found[start : start + prompts] for start in range(0, len(found), prompts)]

    def _named(self, members: Sequence[Perturbation | None]) -> list[str]:
        """Name the adapters of members; those already named keep their name."""
        new = [member for member in dict.fromkeys(members) if member not in self._names]
        names = {one: f"{self._changes}-{self._named_so_far + k}" for k, one in enumerate(new)}
        self._named_so_far += len(new)  # a name is never used again: vLLM keeps what it stood for
        if names:
            self.transport.call("register", write_members({names[one]: one for one in new}))
            self._names |= names
        return [self._names[member] for member in members]

    def _forget(self, members: Sequence[Perturbation | None]) -> None:
        """Unload the adapters of members."""
        names = [self._names.pop(one) for one in dict.fromkeys(members) if one in self._names]
        if names:
            self.transport.forget_adapters(names)

    @contextlib.contextmanager
    def _standing(self, member: Perturbation | None) -> Iterator[None]:
        """Write a member's tensors, and the center's in the end."""
        if member is None:
            yield
            return
        self._write(member)
        try:
            yield
        finally:
            self._write(None)

    def _write(self, member: Perturbation | None) -> None:
        self.transport.call("apply_member", write_members({"who": member}))
        self.transport.forget_prefixes()

    def _changed(self) -> None:
        """Serve the center's weights, and let nothing be known under an old name."""
        self.transport.call("clear")
        self.transport.forget_adapters(list(self._names.values()))
        self._names.clear()
        self._named_so_far = 0
        self._changes += 1
        if self._written:
            self._write(None)
        else:
            self.transport.forget_prefixes()
