"""The messages of a chat in OpenAI's API, and tools in them, as the model reads and writes them.

Tools are in the format of Hermes and Qwen models, as in germline's own environments: a system
message describes them, the model calls them in its text, and a user message has the results.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from germline.endpoint.http_app import RequestError
from germline.environments.tool_calls import (
    schema_prompt,
    split_calls,
    tool_call,
    tool_response,
)
from germline.types import Example

Text = Annotated[str, Field(min_length=0)]
"""A text; the bound makes pydantic refuse half of a surrogate pair, which no tokenizer reads."""

NonEmptyText = Annotated[str, Field(min_length=1)]


def as_one_of(expected: str) -> WrapValidator:
    """Return a validator with one message for all alternatives of a type."""

    def validate(value: object, handler: Callable[[object], object]) -> object:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError(
                "alternatives", "use {expected}", {"expected": expected}
            ) from None

    return WrapValidator(validate)


Roles = Literal["system", "developer", "user", "assistant", "tool"]


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

    @property
    def text(self) -> str:
        """Return the call as the model writes it."""
        return tool_call(self.function.name, self.function.arguments)


class ToolFunction(BaseModel):
    """The description of a tool."""

    name: NonEmptyText
    description: Text | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    """A tool that the model may call."""

    type: Literal["function"]
    function: ToolFunction


def _with_content(schema: dict[str, Any]) -> None:
    """Require the content of a message in its JSON schema.

    Only a message with tool calls may do without, which a schema cannot say shortly.
    """
    schema["required"] = ["role", "content"]
    content = schema["properties"]["content"]
    content["anyOf"] = [kind for kind in content["anyOf"] if kind != {"type": "null"}]
    del content["default"]


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(json_schema_extra=_with_content)

    role: Roles
    content: (
        Annotated[
            Text | list[TextPart],
            as_one_of('a Unicode text, or a list of parts {"type": "text", "text": ...}'),
        ]
        | None
    ) = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = None

    @model_validator(mode="after")
    def _has_content(self) -> "Message":
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("`content` is required")
        return self

    @property
    def text(self) -> str:
        """Return the message as the model reads it."""
        parts = self.content or ""
        content = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        if self.role == "tool":
            return tool_response(content)
        calls = [call.text for call in self.tool_calls or ()]
        return "\n".join([*([content] if content or not calls else []), *calls])

    @property
    def template_role(self) -> str:
        """Return the role that chat templates know: `developer` is a newer name of `system`."""
        return {"developer": "system", "tool": "user"}.get(self.role, self.role)


def as_example(messages: Sequence[Message], tools: Sequence[Tool]) -> Example:
    """Return a conversation as an example, with a description of the tools.

    Results of several tools that follow each other are one message.

    Raises:
        RequestError: the last message is not the user's or a tool's.
    """
    turns: list[tuple[str, str]] = []
    for is_tool, group in itertools.groupby(messages, lambda message: message.role == "tool"):
        shown = [(message.template_role, message.text) for message in group]
        turns += [("user", "\n".join(text for _, text in shown))] if is_tool else shown
    *context, (role, prompt) = turns
    if role != "user":
        raise RequestError(
            400,
            f"messages: the last message is of the role {messages[-1].role}, and must be the "
            "user's, or the result of a tool",
            param="messages",
        )
    if tools:
        described = [tool.model_dump(exclude_none=True) for tool in tools]
        system = [text for role, text in context if role == "system"]
        rest = [turn for turn in context if turn[0] != "system"]
        context = [("system", "\n\n".join([*system, schema_prompt(described)])), *rest]
    return Example(0, prompt, "", chat=True, context=tuple(context))


def reply_message(text: str, *, has_tools: bool, place: int) -> dict[str, Any]:
    """Return a reply as a message.

    Args:
        text: of the model.
        has_tools: whether calls of tools are looked for.
        place: number of messages before it, for the ids of calls.
    """
    content, calls = split_calls(text) if has_tools else (text, [])
    if not calls:
        return {"role": "assistant", "content": content}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "id": f"call-{place}-{number}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for number, (name, arguments) in enumerate(calls)
        ],
    }
