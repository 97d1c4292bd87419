"""The prompt of a row: a field, a template with fields, or a conversation.

A row may hold a conversation, as chat datasets do: `messages`, or a `prompt` that is a list, of
{role, content}. The last user message is the prompt, the messages before it are the context, and an
assistant message at the end is the gold answer.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from germline.tasks.row_files import fields_found, has_field, row_field
from germline.types import GermlineError

PROMPT_FIELDS = ("prompt", "question", "messages")
ROLES = ("system", "user", "assistant")

_MARKS = re.compile(r"\{\{(\w+)\}\}|\{(\w+(?:\.[A-Za-z_]\w*)*)\}")


class Conversation(NamedTuple):
    """The messages of a row: before its prompt, the prompt, and the gold answer if there is one."""

    context: tuple[tuple[str, str], ...]
    prompt: str
    answer: str | None


def row_conversation(row: Mapping[str, Any], place: str, template: str | None) -> Conversation:
    """Return what a row asks; without messages it is a prompt alone."""
    if template is not None:
        text = _MARKS.sub(lambda mark: _filled(mark, row, place), template)
        found = Conversation((), text, None)
    else:
        field = next((name for name in PROMPT_FIELDS if has_field(row, name)), None)
        if field is None:
            raise GermlineError(
                f"{place}: a row needs a `prompt` or a `question`; {fields_found(row)}. Name the "
                "column that holds the prompt, as in task.columns={prompt: NAME}, or give a "
                "task.template with fields of a row"
            )
        if field == "messages" or isinstance(row[field], (list, tuple)):
            found = _conversation(row[field], field, place)
        else:
            found = Conversation((), row_field(row, field, str, place), None)
    if not found.prompt.strip():
        raise GermlineError(f"{place}: the prompt is empty: {found.prompt!r}")
    return found


def read_messages(messages: object, field: str, place: str) -> list[tuple[str, str]]:
    """Read a list of {role, content}."""
    turns: list[tuple[str, str]] = []
    for number, message in enumerate(messages if isinstance(messages, (list, tuple)) else [None]):
        if not isinstance(message, Mapping) or {"role", "content"} - {*message}:
            raise GermlineError(
                f"{place}: `{field}` must be a list of messages such as "
                f'{{"role": "user", "content": "..."}}, found {repr(message)[:200]} at {number}'
            )
        if message["role"] not in ROLES:
            raise GermlineError(
                f"{place}: message {number} of `{field}` has the role {message['role']!r}: use "
                f"one of {', '.join(ROLES)}"
            )
        turns.append((message["role"], row_field(message, "content", str, place)))
    return turns


def as_text(value: object, field: str, place: str) -> str:
    """Write a value of a row as text: text as it is, anything else as JSON."""
    text = value
    if not isinstance(value, str):
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise not_plain(f"the field `{field}`", place, error) from None
    return row_field({field: text}, field, str, place)


def not_plain(what: str, place: str, error: Exception) -> GermlineError:
    """Return the error for a value that JSON cannot hold."""
    return GermlineError(
        f"{place}: {what} must be plain data (text, numbers, lists, mappings): {error}"
    )


def _conversation(messages: object, field: str, place: str) -> Conversation:
    turns = read_messages(messages, field, place)
    answer = turns.pop()[1] if turns and turns[-1][0] == "assistant" else None
    if not turns or turns[-1][0] != "user":
        raise GermlineError(
            f"{place}: `{field}` has no user message to answer: end it with a user message, or "
            "with a user message and the assistant's gold answer"
        )
    return Conversation(tuple(turns[:-1]), turns[-1][1], answer)


def _filled(mark: re.Match[str], row: Mapping[str, Any], place: str) -> str:
    literal, field = mark.groups()
    if literal is not None:
        return f"{{{literal}}}"
    if not has_field(row, field):
        raise GermlineError(
            f"{place}: task.template names the field `{field}`, which is missing; "
            f"{fields_found(row)}. Braces that are meant as text are written twice: "
            f"{{{{{field}}}}}"
        )
    return as_text(row_field(row, field, object, place), field, place)
