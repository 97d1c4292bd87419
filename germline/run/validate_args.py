"""Checks of arguments from Python, before anything is loaded."""

import os
from collections.abc import Sequence
from pathlib import Path

from germline.registry import did_you_mean
from germline.types import GermlineError


def validate_path(name: str, value: object) -> Path:
    """Read a place on disk.

    Raises:
        GermlineError: it is neither a text nor a path.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise _wrong(name, "the path of a file or folder", value)
    return Path(value)


def validate_texts(name: str, values: object) -> list[str]:
    """Read a list of texts.

    Raises:
        GermlineError: it is no list, or not all in it are texts.
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


def validate_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse what is none of the choices.

    Raises:
        GermlineError: it is none of them.
    """
    if value not in choices:
        hint = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise _wrong(name, f"{' or '.join(map(repr, choices))}{hint}", value)


def validate_limit(value: object) -> int | None:
    """Read the largest number of examples to evaluate; None is all of them.

    Raises:
        GermlineError: it is no whole number, or none would be left.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong("limit", "a whole number, or None for all", value)
    if value < 1:
        raise GermlineError(
            f"limit={value} leaves no example to play: use 1 or more, or None for all"
        )
    return value


def _wrong(name: str, wanted: str, value: object) -> GermlineError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return GermlineError(f"{name} must be {wanted}, found {shown} ({type(value).__name__})")
