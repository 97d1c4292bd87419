r"""Check the arguments of a tool call against the JSON schema that the model was shown.

Python's `json` reads more than JSON has: `NaN`, `Infinity`, `1e999`, and halves of surrogate pairs
(`"\ud800"`), which no tokenizer reads. No tool gets them.
"""

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from germline.environments.step_result import is_unicode

Schema = Mapping[str, Any]

_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "null": (type(None),),
}


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
