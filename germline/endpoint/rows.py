"""What an endpoint asks of its engine: completions of rows by weights with a name."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from germline.endpoint.http_app import RequestError
from germline.protocols import Engine
from germline.types import Completion, Decoding, Example, Perturbation

RUNS = 1 << 12
"""Seeds of an episode: each run of an agent has one."""

Conversation = tuple[tuple[str, str], ...]
"""(role, content) of messages."""


@dataclass(frozen=True)
class LoggedTurn:
    """A reply of the model, and the request that it answers.

    Attributes:
        example: what is new in the request, after the messages that the model has read before.
        is_first: whether the model has read nothing before.
        ids: the tokens that the model has read.
    """

    seed: int
    example: Example
    is_first: bool
    ids: tuple[int, ...]
    completion: Completion


class EpisodeLog:
    """The turns of episodes by the name of the weights; thread-safe.

    Requests without a seed belong to no episode and have the `default_seed`.
    """

    def __init__(self, default_seed: int) -> None:
        self.default_seed = default_seed
        self._lock = threading.Lock()
        self._turns: dict[tuple[str, int], dict[tuple[int, Conversation], LoggedTurn]] = {}

    def continued(
        self, model: str, seed: int, example: Example
    ) -> tuple[Example, LoggedTurn | None]:
        """Return what is new in a request as one message, and the turn that it follows, if any."""
        context = example.context
        read = max((i for i, (role, _) in enumerate(context, 1) if role == "assistant"), default=0)
        logged = self._turns.get((model, seed // RUNS), {}).get((seed, context[:read]))
        if logged is None:
            return example, None
        new = [text for _, text in context[read:]]
        prompt = "\n".join([*new, example.prompt])
        return replace(example, context=context[:read], prompt=prompt), logged

    def note(self, model: str, logged: LoggedTurn, asked: Example, said: str) -> None:
        """Log the reply to a whole conversation; `said` is how the next request repeats it."""
        conversation = (*asked.context, ("user", asked.prompt), ("assistant", said))
        with self._lock:
            episode = self._turns.setdefault((model, logged.seed // RUNS), {})
            episode[logged.seed, conversation] = logged

    def turns(self, model: str, seed: int) -> list[LoggedTurn]:
        """Return the turns of an episode in their order, those of its first agent run first."""
        with self._lock:
            logged = list(self._turns.get((model, seed // RUNS), {}).values())
        return sorted(logged, key=lambda turn: turn.seed)


@dataclass(frozen=True)
class SelectedWeights:
    """What a model name stands for.

    `generation` is the last update in the weights, or less than 0; `fingerprint` names them in
    responses.
    """

    generation: int
    member: Perturbation | None
    fingerprint: str


class NamedWeights:
    """An engine and the names of its weights: here members of one center, which does not change.

    `names` and `select` may be called from any thread; `load` and `close` from the one that uses
    the engine. A training run closes the engine.
    """

    engine_kind = "of this run"
    """The `engine.kind` of the config, for errors."""

    def __init__(self, engine: Engine, members: Mapping[str, Perturbation | None]) -> None:
        self.engine = engine
        self._members = members

    def names(self) -> Sequence[str]:
        """Return the names that a list of models shows."""
        return list(self._members)

    def select(self, name: str) -> SelectedWeights:
        """Return the weights of a name, or raise `RequestError` where there are none."""
        if name not in self._members:
            first, *rest = self._members
            raise unknown_model(name, f"{first} to {rest[-1]}" if rest else first)
        # The name stands for the digest, which would take time.
        return SelectedWeights(-1, self._members[name], name)

    def load(self, selected: SelectedWeights) -> None:
        """Let the engine have the unperturbed weights of a selection."""

    def close(self) -> None:
        """Give the engine back."""


def unknown_model(name: str, known: str) -> RequestError:
    """Return the refusal of a name that no weights have; `known` lists the names."""
    return RequestError(
        404,
        f"the model {name[:100]!r} does not exist; this server has {known}",
        param="model",
        code="model_not_found",
    )


@dataclass(frozen=True)
class RowRequest:
    """One completion to generate.

    Attributes:
        decoding: how; `max_new_tokens` is the row's own once its prompt is encoded.
        max_new_tokens: what the client asked for; None: as many as there is room for, but not more
            than those of `decoding`.
        top: how many of the most likely tokens to report; None: no log-probabilities at all.
        echo: whether the tokens of the prompt are scored as well.
        after: the turn that the example's prompt answers, whose tokens are read as they are.
        ids: tokens of an encoded prompt; none where the engine has no tokenizer.
    """

    weights: SelectedWeights
    example: Example
    decoding: Decoding
    max_new_tokens: int | None
    top: int | None = None
    echo: bool = False
    after: LoggedTurn | None = None
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class TokenScore:
    """One token of a text.

    Attributes:
        text: of the token alone.
        logprob: natural logarithm of its probability at temperature 1; None for the first token of
            a text, which follows nothing.
        top: the most likely tokens at its place, with their logarithms.
    """

    text: str
    logprob: float | None
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class RowResult:
    """One completion.

    An engine without a tokenizer gives no `ids` of the prompt. Where the prompt is echoed, it is
    here, and its tokens are scored first.
    """

    completion: Completion
    ids: tuple[int, ...] = ()
    prompt: str = ""
    scores: tuple[TokenScore, ...] = ()
