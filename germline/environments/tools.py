r"""Tools of environments, in the format of Hermes and Qwen models.

    <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>

Llama models write `parameters` instead of `arguments`, and OpenAI's API has both fields within
`function`; these are read as well. Null, nothing or neither of them is a call without arguments. A
reply may hold several calls. A call that cannot be made (no JSON, an unknown tool, wrong arguments,
an exception in the tool) is answered with a response that begins with `Error:`.

Python's `json` reads more than JSON has: `NaN`, `Infinity`, `1e999`, and halves of surrogate pairs
(`"\ud800"`), which no tokenizer reads. No tool gets them.
"""

import inspect
import json
import re
import reprlib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from germline.graders.reward_functions import await_result
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
_JSON_BEGINS = re.compile(r"\S")

Tools = Mapping[str, Callable[..., Any]]
Turn = tuple[str, str]
"""Role and content of a message."""

NOT_TOOLS = ("reset", "get_reward", "close")

_JSON_TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    tuple: "array",
    dict: "object",
    types.NoneType: "null",
}
_ARGUMENT = re.compile(r"^\s*(\w+)\s*(?:\([^)\n]*\))?\s*:\s*(.+)$")


def tool_prompt(tools: Tools) -> str:
    """Return the system message that describes the tools to the model; empty without tools."""
    return schema_prompt([describe(tool) for tool in tools.values()])


def schema_prompt(schemas: Sequence[Mapping[str, Any]]) -> str:
    """Return the system message that describes tools, given their JSON schemas."""
    return PROMPT.format(tools="\n".join(map(json.dumps, schemas))) if schemas else ""


def with_tools(turns: Sequence[Turn], described: str) -> tuple[Turn, ...]:
    """Return the turns with a description of the tools at the end of the system message."""
    system = [text for role, text in turns if role == "system"]
    rest = [turn for turn in turns if turn[0] != "system"]
    return (("system", "\n\n".join([*system, described])), *rest)


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
    """Return where the JSON that begins at a place ends, or the place itself."""
    begins = _JSON_BEGINS.search(reply, start)
    try:
        return start if begins is None else json.JSONDecoder().raw_decode(reply, begins.start())[1]
    except (ValueError, RecursionError):
        return start


def parse_call(call: str) -> tuple[str, dict[str, Any]] | None:
    """Return the name of the tool and the arguments; None where the call is not well formed."""
    try:
        asked = json.loads(call)
        if isinstance(function := asked.get("function"), dict):
            asked = function
        name, arguments = str(asked["name"]), asked.get("arguments")
        if arguments is None:
            arguments = asked.get("parameters")
        if isinstance(arguments, str) and arguments:
            arguments = json.loads(arguments)
        arguments = {} if arguments in (None, "", []) else arguments
        return (name, arguments) if isinstance(arguments, dict) else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def split_calls(reply: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the text before the calls of a reply, and (name, arguments as JSON) of each call.

    A call that is not well formed has no name, and its text in the place of the arguments. Without
    a call the text is the reply as it is.
    """
    calls = []
    for call in find_calls(reply):
        parsed = parse_call(call)
        calls.append((parsed[0], json.dumps(parsed[1])) if parsed else ("", call))
    return (reply.partition(OPEN)[0].strip() if calls else reply), calls


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
    if problem := argument_problem(arguments, _hints(tools[name])):
        return f"Error: wrong arguments of {name}: {problem}"
    try:
        value = await_result(tools[name](*bound.args, **bound.kwargs))
        is_text = isinstance(value, str)
        return value if is_text else json.dumps(value, ensure_ascii=False, default=str)
    except MemoryError:
        raise
    except CAUSED_BY_CODE as error:  # the model is told, and may try again
        return f"Error: {type(error).__name__}: {error}"


def unknown_tool(name: str, tools: Iterable[str]) -> str:
    """Tell the model that there is no such tool, and which tools there are."""
    known = list(tools)
    hint = did_you_mean(name, known)
    return f"Error: there is no tool {name!r}{hint}; the tools are {', '.join(known)}"


def find_tools(environment: object) -> dict[str, Callable[..., Any]]:
    """Return the tools of an environment: its public methods, in the order of their definition."""
    names = dict.fromkeys(
        name
        for kind in reversed(type(environment).__mro__[:-1])
        for name, value in vars(kind).items()
        if inspect.isfunction(value) and not name.startswith("_")
    )
    return {name: getattr(environment, name) for name in names if name not in NOT_TOOLS}


def describe(tool: Callable[..., Any]) -> dict[str, Any]:
    """Return the JSON schema of a tool, from its signature and its docstring."""
    documentation = inspect.getdoc(tool) or ""
    descriptions = _argument_descriptions(documentation)
    hints = _hints(tool)
    parameters = [
        parameter
        for parameter in inspect.signature(tool).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    properties = {
        parameter.name: {
            **_json_type(hints.get(parameter.name, Any)),
            **({"description": text} if (text := descriptions.get(parameter.name)) else {}),
        }
        for parameter in parameters
    }
    return {
        "type": "function",
        "function": {
            "name": tool.__name__,
            "description": re.split(r"\n\s*(?:Args|Returns|Raises):", documentation)[0].strip(),
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": [
                    parameter.name
                    for parameter in parameters
                    if parameter.default is inspect.Parameter.empty
                ],
            },
        },
    }


def _hints(tool: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(getattr(tool, "__func__", tool))
    except (NameError, TypeError):  # a hint that names something which is not there at run time
        return {}


def _json_type(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of a type hint; an unknown one allows any value."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        is_json = all(value is None or isinstance(value, str | int) for value in arguments)
        return {"enum": list(arguments)} if is_json else {}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_json_type(option) for option in arguments]}
    name = _JSON_TYPES.get(origin or hint)
    items = set(arguments) - {...}  # tuple[int, ...] has items of one type, tuple[int, str] not
    if name == "array" and len(items) == 1:
        return {"type": name, "items": _json_type(items.pop())}
    return {} if name is None else {"type": name}


def _argument_descriptions(documentation: str) -> dict[str, str]:
    """Read the section `Args:` of a docstring in Google's style."""
    section = re.split(r"^\s*(?:Args|Arguments):\s*$", documentation, maxsplit=1, flags=re.M)
    lines: Sequence[str] = section[1].splitlines() if len(section) > 1 else ()
    described: dict[str, str] = {}
    for line in lines:
        if line.strip() and not line[:1].isspace():
            break
        if argument := _ARGUMENT.match(line):
            described[argument[1]] = argument[2].strip()
    return described


def argument_problem(arguments: Mapping[str, Any], hints: Mapping[str, Any]) -> str | None:
    """Say what is wrong with the arguments of a call; None if nothing is.

    An argument may have any JSON value if it has no type hint, or one that pydantic does not know.
    """
    # Here, because a grader process without tools starts quickly.
    from pydantic import PydanticUserError, TypeAdapter, ValidationError

    for name, value in arguments.items():
        try:
            kind = TypeAdapter(hints.get(name, Any))
        except (PydanticUserError, NameError):
            kind = TypeAdapter(Any)
        try:
            kind.validate_json(json.dumps(value, allow_nan=False), strict=True)
        except ValidationError as error:
            reasons = dict.fromkeys(one["msg"] for one in error.errors())
            return f"{name!r}: {' or '.join(reasons)}, found {reprlib.repr(value)}"
        except (ValueError, RecursionError) as error:  # NaN, or lists that are nested too deeply
            return f"{name!r}: {error}"
    return None


def is_unicode(text: str) -> bool:
    """Whether a text has a UTF-8 form: halves of surrogate pairs have none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
