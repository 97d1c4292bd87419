"""Tools in the format of Hermes and Qwen models: their descriptions, calls and responses.

    <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>

Llama models write `parameters` instead of `arguments`, which is read as well. Null, or neither of
them, is a call without arguments.

A reply may hold several calls. A call that cannot be made (no JSON, an unknown tool, wrong
arguments, NaN, an exception in the tool) is answered with a response that begins with `Error:`.
"""

import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from germline.environments.tool_schema import Tools, argument_problem, describe
from germline.graders.event_loop import await_result
from germline.graders.worker_messages import CAUSED_BY_CODE
from germline.registry import did_you_mean

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MALFORMED = 'Error: a tool call must be a JSON object such as {"name": "...", "arguments": {...}}'

TOOLS_TITLE = "# Tools"

PROMPT = f"""{TOOLS_TITLE}

You can call tools. Their descriptions are within <tools></tools>:
<tools>
{{tools}}
</tools>

To call a tool, write a JSON object with its name and arguments within <tool_call></tool_call>:
<tool_call>
{{{{"name": "<name of the tool>", "arguments": {{{{<arguments by name>}}}}}}}}
</tool_call>"""

_TAG = re.compile(f"{OPEN}|{CLOSE}")
_JSON = json.JSONDecoder()
_JSON_BEGINS = re.compile(r"\S")


def tool_prompt(tools: Tools) -> str:
    """Return the system message that describes the tools to the model; empty without tools."""
    return schema_prompt([describe(tool) for tool in tools.values()])


def schema_prompt(schemas: Sequence[Mapping[str, Any]]) -> str:
    """Return the system message that describes tools, given their JSON schemas."""
    return PROMPT.format(tools="\n".join(map(json.dumps, schemas))) if schemas else ""


def answer_calls(reply: str, tools: Tools) -> str | None:
    """Make the tool calls of a reply and return their responses; None without a call."""
    calls = find_calls(reply)
    if not calls:
        return None
    return "\n".join(tool_response(_answer(call, tools)) for call in calls)


def tool_response(text: str) -> str:
    """Return the result of a tool as the model reads it."""
    return f"<tool_response>\n{text}\n</tool_response>"


def tool_call(name: str, arguments: str) -> str:
    """Return a call as the model writes it, given its arguments as JSON.

    A call that is not well formed has no name, and its text in the place of the arguments.
    """
    body = f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}' if name else arguments
    return f"{OPEN}\n{body}\n{CLOSE}"


def find_calls(reply: str) -> list[str]:
    """Return the text of every call; the last one may be cut by a stop string.

    A call ends at the first tag after its JSON, because strings in the JSON may hold tags.
    """
    calls: list[str] = []
    end = 0
    while (place := reply.find(OPEN, end)) >= 0:
        start = place + len(OPEN)
        tag = _TAG.search(reply, _json_end(reply, start))
        end = tag.start() if tag else len(reply)
        calls.append(reply[start:end].strip())
    return calls


def _json_end(reply: str, start: int) -> int:
    """Return where the JSON that begins at a place ends; the place itself where there is none."""
    begins = _JSON_BEGINS.search(reply, start)
    try:
        return start if begins is None else _JSON.raw_decode(reply, begins.start())[1]
    except (ValueError, RecursionError):
        return start


def parse_call(call: str) -> tuple[str, dict[str, Any]] | None:
    """Return the name of the tool and the arguments; None where the call is not well formed."""
    try:
        asked = json.loads(call)
        name, arguments = str(asked["name"]), asked.get("arguments")
        if arguments is None:
            arguments = asked.get("parameters")
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        return name, {} if arguments is None else dict(arguments)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def split_calls(reply: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the text before the calls of a reply, and (name, arguments as JSON) of each call.

    A call that is not well formed has no name, and its text in the place of the arguments. Without
    a call the text is the reply as it is.
    """
    found = find_calls(reply)
    if not found:
        return reply, []
    calls = []
    for call in found:
        name, arguments = parse_call(call) or ("", call)
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        calls.append((name, written))
    return reply.partition(OPEN)[0].strip(), calls


def _answer(call: str, tools: Tools) -> str:
    parsed = parse_call(call)
    if parsed is None:
        return MALFORMED
    name, arguments = parsed
    if name not in tools:
        return unknown_tool(name, tools)
    try:
        bound = inspect.signature(tools[name]).bind(**arguments)
    except TypeError as error:
        return f"Error: wrong arguments of {name}: {error}"
    schemas = describe(tools[name])["function"]["parameters"]["properties"]
    if problem := argument_problem(arguments, schemas):
        return f"Error: wrong arguments of {name}: {problem}"
    try:
        return _as_text(await_result(tools[name](*bound.args, **bound.kwargs)))
    except MemoryError:
        raise
    except CAUSED_BY_CODE as error:  # the model is told, and may try again
        return f"Error: {type(error).__name__}: {error}"


def unknown_tool(name: str, tools: Iterable[str]) -> str:
    """Tell the model that there is no such tool, and which tools there are."""
    known = list(tools)
    hint = did_you_mean(name, known)
    return f"Error: there is no tool {name!r}{hint}; the tools are {', '.join(known)}"


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
