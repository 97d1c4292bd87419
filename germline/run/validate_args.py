"""Validate arguments of the Python API before a model is loaded."""

import os
from collections.abc import Sequence
from pathlib import Path

from germline.registry import did_you_mean
from germline.types import GermlineError


def validate_path(name: str, value: object) -> Path:
    """Return an argument as a path.

    Raises:
        GermlineError: it is neither a text nor a path.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise _wrong(name, "the path of a file or folder", value)
    return Path(value)


def validate_texts(name: str, values: object) -> list[str]:
    """Return an argument as a list of texts.

    Raises:
        GermlineError: it is not a list, or an item is not a text.
    """
    if isinstance(values, str):
        raise GermlineError(
            f"{name} must be a list of texts, found the text {values!r}: wrap it in []"
        )
    if not isinstance(values, Sequence):
        raise _wrong(name, "a list of texts", values)
    for number, value in enumerate(values):
        if not isinstance(value, str):
            raise _wrong(f"{name}[{number}]", "a text", value)
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise _wrong(f"{name}[{number}]", "Unicode text, without half a character", value)
    return list(values)


def validate_choice(name: str, value: object, choices: Sequence[str | None]) -> None:
    """Check that an argument is one of the choices, of which None is the default.

    Raises:
        GermlineError: it is not.
    """
    if value not in choices:
        words = [choice for choice in choices if choice is not None]
        hint = did_you_mean(value, words) if isinstance(value, str) else ""
        raise _wrong(name, f"{' or '.join(map(repr, choices))}{hint}", value)


def validate_limit(value: object) -> int | None:
    """Return the largest number of examples to evaluate; None for all.

    Raises:
        GermlineError: it is not a whole number of at least 1.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong("limit", "a whole number, or None for all", value)
    if value < 1:
        raise GermlineError(
            f"limit={value} leaves no example to evaluate: use 1 or more, or None for all"
        )
    return value


def _wrong(name: str, wanted: str, value: object) -> GermlineError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return GermlineError(f"{name} must be {wanted}, found {shown} ({type(value).__name__})")
