r"""JSON schemas of tools, from signature and docstring, and the check of a call's arguments.

Python's `json` reads more than JSON has: `NaN`, `Infinity`, `1e999`, and halves of surrogate pairs
(`"\ud800"`), which no tokenizer reads. No tool gets them.
"""

import inspect
import math
import re
import reprlib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from germline.environments.step_result import is_unicode

Tools = Mapping[str, Callable[..., Any]]
Schema = Mapping[str, Any]

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
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "null": (type(None),),
}
_ARGUMENT = re.compile(r"^\s*(\w+)\s*(?:\([^)\n]*\))?\s*:\s*(.+)$")


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
    try:
        hints = typing.get_type_hints(getattr(tool, "__func__", tool))
    except (NameError, TypeError):  # a hint that names something which is not there at run time
        hints = {}
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


def argument_problem(arguments: Mapping[str, Any], schemas: Mapping[str, Schema]) -> str | None:
    """Say what is wrong with the arguments of a call; None if nothing is.

    Args:
        arguments: of the call.
        schemas: by name of the argument; one without a schema may have any JSON value.
    """
    for name, value in arguments.items():
        schema = schemas.get(name, {})
        needed = _describe(schema) if not _fits(value, schema) else _json_need(value)
        if needed:
            return f"{name!r} must be {needed}, found {reprlib.repr(value)}"
    return None


def _json_need(value: Any) -> str | None:
    """Say what a part that JSON does not have must be instead; None for a value of JSON."""
    parts = [value]  # and no recursion: a model may nest more lists than Python calls
    while parts:
        part = parts.pop()
        if isinstance(part, float) and not math.isfinite(part):
            return "a finite number" if part is value else "JSON, which has finite numbers only"
        if isinstance(part, str) and not is_unicode(part):
            return "valid Unicode text"
        if isinstance(part, dict):
            parts += [*part, *part.values()]
        elif isinstance(part, list):
            parts += part
    return None


def _fits(value: Any, schema: Schema) -> bool:
    if "enum" in schema:
        # True == 1 in Python.
        return any(type(value) is type(option) and value == option for option in schema["enum"])
    if "anyOf" in schema:
        return any(_fits(value, option) for option in schema["anyOf"])
    if "type" not in schema:
        return True
    kind = schema["type"]
    if isinstance(value, bool) and kind != "boolean":
        return False
    if kind == "array":
        items = schema.get("items", {})
        return isinstance(value, list) and all(_fits(item, items) for item in value)
    return isinstance(value, _PYTHON_TYPES[kind])


def _describe(schema: Schema) -> str:
    if "enum" in schema:
        return f"one of {', '.join(map(repr, schema['enum']))}"
    if "anyOf" in schema:
        return " or ".join(map(_describe, schema["anyOf"]))
    items = schema.get("items", {})
    return f"{schema['type']} of {_describe(items)}" if items else str(schema["type"])
