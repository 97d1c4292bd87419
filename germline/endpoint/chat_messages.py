"""The messages of a chat in OpenAI's API, and tools in them, as the model reads and writes them.

Tools are in the format of Hermes and Qwen models, as in germline's own environments: a system
message describes them, the model calls them in its text, and a user message has the results.
"""

import itertools
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from germline.endpoint.http_app import RequestError
from germline.environments.tools import (
    schema_prompt,
    split_calls,
    tool_call,
    tool_response,
)
from germline.types import Example

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
        """Return the message as the model reads it."""
        parts = self.content or ""
        content = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        if self.role == "tool":
            return tool_response(content)
        functions = [call.function for call in self.tool_calls or ()]
        calls = [tool_call(function.name, function.arguments) for function in functions]
        return "\n".join([*([content] if content or not calls else []), *calls])


def as_example(messages: Sequence[Message], tools: Sequence[Tool]) -> Example:
    """Return a conversation as an example, with a description of the tools.

    Results of several tools that follow each other are one message.

    Raises:
        RequestError: the last message is not the user's or a tool's.
    """
    turns: list[tuple[str, str]] = []
    for is_tool, group in itertools.groupby(messages, lambda message: message.role == "tool"):
        shown = [(TEMPLATE_ROLES.get(one.role, one.role), one.text) for one in group]
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
    """Return a reply of the model as a message.

    Args:
        text: of the model.
        has_tools: whether calls of tools are looked for.
        place: number of messages before it, for the ids of calls.
    """
    content, calls = split_calls(text) if has_tools else (text, [])
    described = [
        {
            "id": f"call-{place}-{number}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for number, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content}
    return message | {"tool_calls": described} if calls else message
