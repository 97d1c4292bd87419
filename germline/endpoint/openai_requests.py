"""The requests of OpenAI's API that the server understands, and what it refuses in them.

Settings that this server does not have are refused by name, unless they have the value that changes
nothing (or null); fields that cannot change a result are ignored. A number is no text and no truth
value: `"logprobs": true` of a chat is a mistake in a completion, and not 1.

Tools are in the format of Hermes and Qwen models, as in germline's own environments: a system
message describes them, the model calls them in its text, and a user message has the results.
"""

import itertools
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    model_validator,
)

from germline.endpoint.http_app import RequestError
from germline.environments.tools import schema_prompt, tool_call, tool_response, with_tools
from germline.noise import hashed_number
from germline.types import Decoding, Example

Text = Annotated[str, Field(min_length=0)]
"""A text; the bound makes pydantic refuse half of a surrogate pair, which no tokenizer reads."""

NonEmptyText = Annotated[str, Field(min_length=1)]

TEMPLATE_ROLES = {"developer": "system", "tool": "user"}
"""Roles that chat templates do not know, and those that they know instead."""


class TextPart(BaseModel):
    """A part of a message's content."""

    type: Literal["text"]
    text: Text


class CalledFunction(BaseModel):
    """The tool that a message of the assistant calls."""

    name: Text
    arguments: Text


class ToolCall(BaseModel):
    """A call of a tool."""

    type: Literal["function"] = "function"
    function: CalledFunction


class ToolFunction(BaseModel):
    """The description of a tool."""

    name: NonEmptyText
    description: Text | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    """A tool that the model may call."""

    type: Literal["function"]
    function: ToolFunction


class Message(BaseModel):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[TextPart] | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = None

    @model_validator(mode="after")
    def _has_content(self) -> "Message":
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("`content` is required")
        return self

    @property
    def text(self) -> str:
        """The message as the model reads it."""
        parts = self.content or ""
        content = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        if self.role == "tool":
            return tool_response(content)
        functions = [call.function for call in self.tool_calls or ()]
        calls = [tool_call(function.name, function.arguments) for function in functions]
        return "\n".join([*([content] if content or not calls else []), *calls])


NEUTRAL: Mapping[str, Sequence[Any]] = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "min_p", "min_tokens"), (0,)),
    **dict.fromkeys(("best_of", "length_penalty", "repetition_penalty"), (1,)),
    **dict.fromkeys(("ignore_eos", "use_beam_search"), (False,)),
    "top_k": (0, -1),
    "suffix": ("",),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
}
"""Settings that this server does not have, and the values of each that change nothing."""

IGNORED = {
    *("metadata", "parallel_tool_calls", "prediction", "priority", "prompt_cache_key"),
    *("prompt_cache_retention", "request_id", "safety_identifier", "service_tier", "store", "user"),
}
"""Fields that change no result."""

Tokens = Annotated[list[Annotated[StrictInt, Field(ge=0)]], Field(min_length=1)]
Stop = NonEmptyText | Annotated[list[NonEmptyText], Field(max_length=16)]
Prompt = Text | Tokens | Annotated[list[Text] | list[Tokens], Field(min_length=1)]


class StreamOptions(BaseModel):
    """How a response is streamed."""

    include_usage: StrictBool = False


class SamplingFields(BaseModel):
    """What chat and completion requests have in common; null is the default."""

    model_config = ConfigDict(extra="forbid")

    neutral: ClassVar[Mapping[str, Sequence[Any]]] = NEUTRAL

    model: str
    temperature: Annotated[StrictFloat, Field(ge=0, le=2)] | None = None
    top_p: Annotated[StrictFloat, Field(ge=0, le=1)] | None = None
    n: Annotated[StrictInt, Field(ge=1, le=128)] | None = None
    stop: Stop | None = None
    seed: Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        """Drop nulls and settings that change nothing, and refuse their other values."""
        if not isinstance(values, dict):
            return values
        given = {name: v for name, v in values.items() if v is not None and name not in IGNORED}
        for name in given.keys() & cls.neutral.keys():
            if (value := given.pop(name)) not in cls.neutral[name]:
                raise RequestError(
                    400,
                    f"{name}={value!r:.60} is not supported by this server: leave it out",
                    param=name,
                    code="unsupported_parameter",
                )
        return given

    @property
    def choices(self) -> int:
        """Number of completions of each prompt."""
        return self.n or 1

    def decoding(self, max_new_tokens: int) -> Decoding:
        """Return how tokens are chosen; OpenAI's default temperature is 1."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        temperature = 1.0 if self.temperature is None else self.temperature
        top_p = 1.0 if self.top_p is None else self.top_p
        return Decoding(max_new_tokens, temperature, top_p, stop, noise_stream="serve")

    def sampled(self, examples: Sequence[Example]) -> list[Example]:
        """Return the examples of all choices, each with sampling noise of its own.

        The same seed gives the same noise, and each turn of a conversation has other noise. Greedy
        completions need none: one choice stands for all.
        """
        if self.temperature == 0:
            return list(examples)
        seed = secrets.randbits(63) if self.seed is None else self.seed
        replies = sum(role == "assistant" for role, _ in examples[0].context)
        return [
            replace(example, index=_noise_index(seed, place, choice))
            for place, example in enumerate(examples, replies)
            for choice in range(self.choices)
        ]


class CompletionRequest(SamplingFields):
    """A request to continue texts."""

    prompt: Prompt
    max_tokens: Annotated[StrictInt, Field(ge=0)] | None = 16
    logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    echo: StrictBool | None = None

    @property
    def prompts(self) -> list[Any]:
        """The prompts: texts, or lists of token ids."""
        prompts: list[Any] = self.prompt if isinstance(self.prompt, list) else [self.prompt]
        return [prompts] if isinstance(prompts[0], int) else prompts

    def examples(self) -> list[Example]:
        """Return one example per prompt."""
        return [
            Example(0, prompt, "", chat=False)
            if isinstance(prompt, str)
            else Example(0, "", "", chat=False, token_ids=tuple(prompt))
            for prompt in self.prompts
        ]


class ChatRequest(SamplingFields):
    """A request to answer the last message of a conversation; it has no log-probabilities."""

    neutral = {**NEUTRAL, "logprobs": (False,), "top_logprobs": (0,)}

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto"] | None = None

    @property
    def described_tools(self) -> Sequence[Tool]:
        """The tools that the model is told of."""
        return () if self.tool_choice == "none" else self.tools or ()

    def example(self) -> Example:
        """Return the conversation as an example, with a description of the tools.

        Results of several tools that follow each other are one message.
        """
        turns: list[tuple[str, str]] = []
        for is_tool, group in itertools.groupby(self.messages, lambda said: said.role == "tool"):
            shown = [(TEMPLATE_ROLES.get(said.role, said.role), said.text) for said in group]
            turns += [("user", "\n".join(text for _, text in shown))] if is_tool else shown
        *context, (role, prompt) = turns
        if role != "user":
            raise RequestError(
                400,
                f"messages: the last message is of the role {self.messages[-1].role}, and must be "
                "the user's, or the result of a tool",
                param="messages",
            )
        if tools := self.described_tools:
            described = [tool.model_dump(exclude_none=True) for tool in tools]
            context = [*with_tools(context, schema_prompt(described))]
        return Example(0, prompt, "", chat=True, context=tuple(context))


def _noise_index(seed: int, place: int, choice: int) -> int:
    """Return the index of a row's sampling noise, which rows of other seeds do not have.

    A seed is part of the index and not of the decoding, so that rows of different seeds can be
    generated in one batch.
    """
    return hashed_number(f"germline serve/{seed}/{place}/{choice}", 63)
