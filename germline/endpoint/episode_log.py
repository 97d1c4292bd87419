"""What a model reads and writes in episodes whose environments ask an endpoint for its replies.

The seed of a request names the episode, and the run of an agent in it (`EndpointEpisode.seed`). A
request that continues a logged conversation reads the tokens that the model has written as they
are: tokenizing their text again may give other tokens.
"""

import threading
from dataclasses import dataclass, replace

from germline.types import Completion, Example

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
