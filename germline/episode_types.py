"""The data types of episodes: what the model and an environment wrote, and why an episode ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Ended = Literal["done", "max_turns", "context", "failure"]
"""Why an episode ended: the environment ended it, the limit of turns or the model's context was
reached, or the environment failed."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """What the model has written in an episode so far: the input of an environment's grader.

    The same transcript always has the same continuation, so an episode can be continued in any
    process: an environment that is not there any more is made again and given the same replies.

    Attributes:
        replies: the text of each turn of the model; none at the start of an episode.
        seed: of the environment's randomness, the same for all members of a generation.
        is_final: whether no reply follows, because a limit of turns or tokens is reached.
    """

    replies: tuple[str, ...]
    seed: int
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of an episode.

    Attributes:
        role: `assistant`: the model wrote it; `user`: the environment did.
        tokens: token ids as generated; empty for messages of the environment.
    """

    role: Literal["assistant", "user"]
    content: str
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EndpointEpisode:
    """An episode in which the environment asks an endpoint for the model's replies.

    Attributes:
        row: what the environment is reset with.
        model: the name of the weights in requests.
        seed: of the sampling of the first agent run in the episode; the next one has `seed + 1`.
    """

    row: Mapping[str, object]
    model: str
    seed: int


@dataclass(frozen=True, slots=True)
class EpisodeBatch:
    """Episodes that a grader process plays at the same time, from their start to their end.

    Attributes:
        url: base URL of the endpoint's API.
        token: that the endpoint asks for.
        sampling: fields of every request, as OpenAI's API names them.
        max_turns: of one run of an agent.
        timeout_s: longest time of an episode between a reply and its next request.
    """

    episodes: tuple[EndpointEpisode, ...]
    url: str
    token: str
    sampling: Mapping[str, Any]
    max_turns: int
    timeout_s: float
