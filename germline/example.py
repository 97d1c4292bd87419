"""The data types of texts: examples, the turns of episodes, completions, and their grades.

Grader processes import these alone: this module is free of numpy, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Finish = Literal["eos", "stop", "length", "context"]
Ended = Literal["done", "max_turns", "context", "failure"]
"""Why an episode ended: the environment ended it, the limit of turns or the model's context was
reached, or the environment failed."""


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
class Example:
    """One task item: the prompt as the task wrote it, and the facts its grader needs.

    Attributes:
        index: position in its split; also names its sampling noise.
        chat: whether the engine wraps the prompt in the model's chat template.
        answer: the gold completion; used by checks, displays and most graders.
        facts: further inputs of the grader, such as numbers and a target.
        context: (role, content) of each message before the prompt.
        token_ids: the prompt as token ids, which then take the place of the other fields.
        turns: what the model and an environment wrote after the prompt; the model goes on from it.
        sample: which of several completions of its prompt this is; each has sampling noise of its
            own.
    """

    index: int
    prompt: str
    answer: str
    chat: bool
    facts: Mapping[str, object] = field(default_factory=dict)
    context: tuple[tuple[str, str], ...] = ()
    token_ids: tuple[int, ...] = ()
    turns: tuple[Turn, ...] = ()
    sample: int = 0


@dataclass(frozen=True, slots=True)
class Decoding:
    """How tokens are chosen, the same for every member of a generation (common random numbers).

    Attributes:
        temperature: 0 is greedy. top_p: probability mass sampled from; 1 keeps every token.
        stop: strings that end a completion; they are not part of its text.
        noise_seed: run seed of the sampling noise; noise_generation is its generation.
        noise_stream: name of its stream; held-out scores use another one than training.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    noise_seed: int = 0
    noise_generation: int = 0
    noise_stream: str = "train"

    @property
    def noise_place(self) -> str:
        """Run seed, generation and stream of the sampling noise, as part of a name."""
        return f"{self.noise_seed}/{self.noise_generation}/{self.noise_stream}"


@dataclass(frozen=True, slots=True)
class Completion:
    """The text that a model generated, without the prompt.

    Attributes:
        text: decoded tokens without special tokens, cut before a stop string.
        tokens: token ids as generated, with the end-of-sequence token; empty only for `context`.
        finish: `context`: the conversation has no room for another turn in the model's context.
        prompt_tokens: number of tokens read before; of an episode, with the environment's messages.
    """

    text: str
    tokens: tuple[int, ...]
    finish: Finish
    prompt_tokens: int

    @property
    def length(self) -> int:
        """Number of tokens of the prompt and the completion."""
        return self.prompt_tokens + len(self.tokens)


def joined(conversations: Sequence[Sequence[Completion]]) -> Completion:
    """Return the turns of an episode as one completion; each conversation has at least one.

    Its prompt is what the model read besides its own turns, each token once: the first prompt and
    the messages of the environment.
    """
    written = [turn for turns in conversations for turn in turns]
    tokens = tuple(token for turn in written for token in turn.tokens)
    length = sum(turns[-1].length for turns in conversations)
    return Completion(
        "\n".join(turn.text for turn in written),
        tokens,
        written[-1].finish if written else "length",
        length - len(tokens),
    )


@dataclass(frozen=True, slots=True)
class Grade:
    """The verdict on one completion, or on an episode.

    Attributes:
        reward: NaN when it is missing for a reason the model did not cause.
        parts: unweighted values of the rubric, including metrics (weight 0).
        failure: why the floor reward was given or the reward is missing; None without a failure.
        observation: the environment's message, where the episode goes on, with the reward NaN.
    """

    reward: float
    parts: Mapping[str, float]
    failure: str | None = None
    observation: str | None = None


@dataclass(frozen=True, slots=True)
class Rollout:
    """The completion of one member for one example, and its grade.

    Attributes:
        completion: of an episode: the model's texts, one per line, its tokens, its last finish.
        turns: the messages of an episode after the prompt; empty where there is one completion.
        ended: why the episode ended; None where there is one completion.
    """

    member: int
    example: int
    completion: Completion
    grade: Grade
    turns: tuple[Turn, ...] = ()
    ended: Ended | None = None


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
