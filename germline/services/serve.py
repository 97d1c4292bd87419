"""Serve a run or a model over OpenAI's API: any generation and any member, by name.

    base               the weights before the first update
    center             the newest weights of the run, or those of the generation that is served
    gen-12             the weights after the update of generation 12
    gen-12/member-7    member 7 of generation 12: the weights before that update, perturbed

A model that is no run has `base` and `center`, which are the same. The engine holds one set of
weights; other generations are rebuilt from the journal when they are first used, and verified by
the digests in it. So a change from one generation to another takes as long as loading the run, and
memory for a second set of weights; the last few are kept. The journal of a run that is being
trained is read again when it has grown.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from torch import Tensor

from germline.config import Config
from germline.endpoint.engine_batcher import EngineBatcher
from germline.endpoint.http_app import RequestError, UvicornService, check_address
from germline.endpoint.openai_app import Endpoint
from germline.endpoint.rows import NamedWeights, SelectedWeights, unknown_model
from germline.methods.method import make_method
from germline.protocols import Engine
from germline.record import JournalEntry, RunDirectory
from germline.run.build_parts import strategy_of_run
from germline.run.model_prompts import asks_chats
from germline.run.weights import (
    generation_of_source,
    load_engine,
    load_single_model,
    newest_generation,
    open_source,
)
from germline.types import Perturbation, SeedPerturbation

BASE, CENTER = "base", "center"
NUMBERED = re.compile(r"gen-(0|[1-9][0-9]{0,8})(?:/member-(0|[1-9][0-9]{0,8}))?")

STATES_KEPT = 2
"""Sets of weights kept on the host besides the one in the engine."""

POPULATIONS_KEPT = 4
"""Generations whose members are kept."""

LONGEST_DEFAULT = 1024
"""Tokens of the longest completion of a request without `max_tokens`."""

ENSEMBLE = -2
"""Stands for the best member of a run whose members vote, where a generation would stand."""


class ServedWeights(NamedWeights):
    """An engine and the names of its weights.

    `select` may be called from any thread; `load` and `close` from the one that uses the engine.
    """

    def __init__(
        self, engine: Engine, config: Config, directory: RunDirectory | None, generation: int
    ) -> None:
        super().__init__(engine, {})
        self.engine_kind = config.engine.kind
        self.config = config
        self._directory = directory
        self._center = self._loaded = generation
        self._center_digest = engine.weights.digest()
        self._states: OrderedDict[int, Mapping[str, Tensor]] = OrderedDict()
        self._members_of = lru_cache(POPULATIONS_KEPT)(self._read_members)
        self._entries_at = lru_cache(1)(self._read_entries)
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls,
        source: str,
        generation: int | Literal["best"] | None = None,
        overrides: Sequence[str] = (),
    ) -> "ServedWeights":
        """Load a run directory, a model, or a PEFT adapter."""
        directory, config = open_source(source, None, overrides)
        last = generation_of_source(source, directory, generation)
        if directory is None:
            return cls(load_engine(None, config), config, None, -1)
        if not directory.config.method.trains_center:
            return cls(load_single_model(directory, config), config, directory, ENSEMBLE)
        if last is None:
            last = newest_generation(directory)
        engine = load_engine(directory, config, generation=last)
        return cls(engine, config, directory, last)

    @property
    def sends_chats(self) -> bool:
        """Whether prompts go through the chat template, as in the run that trained the weights."""
        return asks_chats(self._directory, self.config)

    def names(self) -> list[str]:
        """Return the names of all weights without perturbation."""
        return [BASE, CENTER, *(f"gen-{number}" for number in range(self._generations()))]

    def select(self, name: str) -> SelectedWeights:
        """Return the weights of a name, or raise `RequestError` where there are none."""
        with self._lock:
            if name == CENTER or (name == BASE and self._directory is None):
                return SelectedWeights(self._center, None, self._center_digest)
            if name == BASE:
                return SelectedWeights(-1, None, self._digest(-1))
            numbers = NUMBERED.fullmatch(name)
            if self._directory is None or numbers is None:
                raise self._unknown(name)
            generation, member = numbers.groups()
            if member is not None:
                return self._member(name, int(generation), int(member))
            if int(generation) >= self._generations():
                raise self._unknown(name)
            return SelectedWeights(int(generation), None, self._digest(int(generation)))

    def load(self, selected: SelectedWeights) -> None:
        """Let the engine have the unperturbed weights of a selection."""
        if selected.generation == self._loaded:
            return
        state = self._states.pop(selected.generation, None) or self._rebuilt(selected.generation)
        replaced = self.engine.weights.state().items()
        self._states[self._loaded] = {name: value.to("cpu", copy=True) for name, value in replaced}
        while len(self._states) > STATES_KEPT:
            self._states.popitem(last=False)
        self.engine.weights.load_state(state)
        self._loaded = selected.generation
        self.engine.refresh()

    def close(self) -> None:
        """End the processes of the engine."""
        self.engine.close()

    def _rebuilt(self, generation: int) -> Mapping[str, Tensor]:
        """Load weights of the run with another engine, which is dropped."""
        assert self._directory is not None
        load = load_single_model if generation == ENSEMBLE else load_engine
        last = None if generation == ENSEMBLE else generation
        with closing(
            load(self._directory, self.config, generates=False, generation=last)
        ) as engine:
            return engine.weights.state()

    def _member(self, name: str, generation: int, member: int) -> SelectedWeights:
        if generation >= len(self._entries()):
            raise self._unknown(name)
        members = self._members_of(generation)
        if member >= len(members):
            raise self._unknown(name)
        digest = self._digest(generation - 1)
        return SelectedWeights(generation - 1, members[member], f"{digest}/{name}")

    def _read_members(self, generation: int) -> Sequence[Perturbation]:
        assert self._directory is not None
        config, entries = self._directory.config, self._entries()
        dimension = self.engine.weights.dimension
        method = make_method(config, strategy_of_run(config, dimension))
        updates = [entry.update for entry in entries[: generation + 1]]
        # A calibrated sigma is known from the generation's own update.
        is_calibrated = config.search.is_calibrated
        method.recall(updates if is_calibrated else updates[:-1])
        members = method.ask(generation).members
        if not is_calibrated or getattr(config.method, "sigmas", None):
            return members
        sigma = updates[-1].sigma
        return [
            replace(member, sigma=sigma) if isinstance(member, SeedPerturbation) else member
            for member in members
        ]

    def _digest(self, generation: int) -> str:
        assert self._directory is not None
        if generation < 0:
            return self._directory.base_digest
        return self._entries()[generation].digest

    def _generations(self) -> int:
        """Return the number of generations whose weights can be rebuilt from the journal alone."""
        method = self._directory.config.method if self._directory else None
        return len(self._entries()) if method and method.trains_center and method.replayable else 0

    def _entries(self) -> list[JournalEntry]:
        """Read the journal, again where it has grown."""
        if self._directory is None:
            return []
        try:
            status = self._directory.journal.path.stat()
        except FileNotFoundError:  # a run without a generation
            return []
        return self._entries_at(status.st_mtime_ns, status.st_size)

    def _read_entries(self, *_version: int) -> list[JournalEntry]:
        assert self._directory is not None
        return self._directory.journal.read()

    def _unknown(self, name: str) -> RequestError:
        count, members = self._generations(), len(self._entries())
        known = f"{BASE}, {CENTER}"
        known += f", gen-0 to gen-{count - 1}" if count else ""
        if members:
            population = self.config.strategy.population or 1
            known += f", gen-0/member-0 to gen-{members - 1}/member-{population - 1}"
        return unknown_model(name, known)


@contextmanager
def endpoint(
    source: str,
    generation: int | Literal["best"] | None = None,
    overrides: Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
) -> Iterator[tuple[UvicornService, ServedWeights]]:
    """Load the weights of a source, and listen during a `with` block; call `run` of the server.

    The source is a run directory, a model, or a PEFT adapter. Of a run, `center` names the weights
    of the generation, by default the newest. Overrides are settings `engine.*` and `microbatch.*`.
    Requests must have the token, if there is one; an address beyond loopback needs one.
    """
    check_address(host, token)
    weights = ServedWeights.open(source, generation, overrides)
    batcher = EngineBatcher(weights, max_rows=weights.config.microbatch.rows)
    try:
        app = Endpoint(weights, batcher, LONGEST_DEFAULT).app(token)
        with closing(UvicornService(app, host, port)) as server:
            yield server, weights
    finally:
        batcher.close()
