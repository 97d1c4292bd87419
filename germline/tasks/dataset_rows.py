"""Rows of your own data to examples: the prompt, the gold answer, the split, and the digest.

A row is a mapping of plain values. Its prompt is the field `prompt` or `question`, or a template
with its fields; its answer is text, or any JSON value, written as JSON.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from germline.config import CustomTask
from germline.tasks.json_files import PlacedRow, row_field
from germline.tasks.splits import seeded_split
from germline.types import Example, GermlineError, Split

PROMPT_FIELDS = ("prompt", "question")

_MARKS = re.compile(r"\{\{(\w+)\}\}|\{(\w+)\}")


def split_rows(
    train: Sequence[PlacedRow],
    test: Sequence[PlacedRow] | None,
    template: str | None,
    seed: int,
    name: str,
) -> dict[Split, list[tuple[str, PlacedRow]]]:
    """Return prompts and rows of both splits; rows of the same prompt stay on one side.

    Raises:
        GermlineError: a prompt cannot be made, or there is nothing to split.
    """
    asked = [(row_prompt(row, place, template), (place, row)) for place, row in train]
    if test is not None:
        return {
            "train": asked,
            "test": [(row_prompt(row, place, template), (place, row)) for place, row in test],
        }
    sides = seeded_split(asked, [text for text, _ in asked], seed, name)
    return {"train": sides[0], "test": sides[1]}


def row_prompt(row: Mapping[str, Any], place: str, template: str | None) -> str:
    """Write the prompt of a row.

    Raises:
        GermlineError: a field is missing, or the prompt is empty.
    """
    if template is None:
        field = next((name for name in PROMPT_FIELDS if name in row), None)
        if field is None:
            found = ", ".join(f"`{name}`" for name in row) or "none"
            raise GermlineError(
                f"{place}: a row needs a `prompt` or a `question`, or a task.template with its "
                f"fields; fields found: {found}"
            )
        text = row_field(row, field, str, place)
    else:
        text = _MARKS.sub(lambda mark: _filled(mark, row, place), template)
    if not text.strip():
        raise GermlineError(f"{place}: the prompt is empty: {text!r}")
    return text


def row_answer(row: Mapping[str, Any], field: str, place: str) -> str:
    """Return the gold answer of a row: text as it is, white space around it dropped.

    Raises:
        GermlineError: the field is missing or is not text that can be written.
    """
    return as_text(row_field(row, field, object, place), field, place).strip()


def as_text(value: object, field: str, place: str) -> str:
    """Write a value of a row as text: text as it is, anything else as JSON.

    Raises:
        GermlineError: the value is neither.
    """
    text = value
    if not isinstance(value, str):
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise GermlineError(
                f"{place}: the field `{field}` must be plain data (text, numbers, lists, "
                f"mappings): {error}"
            ) from None
    return row_field({field: text}, field, str, place)


def task_digest(code: bytes, train: Sequence[PlacedRow], test: Sequence[PlacedRow] | None) -> str:
    """Return the SHA-256 of a task: the code that scores, and the rows of both splits."""
    sums = hashlib.sha256()
    for part in (code, _encoded(train), b"" if test is None else _encoded(test)):
        sums.update(hashlib.sha256(part).digest())
    return sums.hexdigest()


def check_unchanged(config: CustomTask, found: str) -> None:
    """Refuse a file that is not the one a run was begun with.

    Raises:
        GermlineError: the digests differ.
    """
    if config.digest not in (None, found):
        raise GermlineError(
            f"task.path: {config.path} or its rows have changed since this run began (task.digest "
            f"was {str(config.digest)[:12]}, is now {found[:12]}). Restore the old file; or, to "
            "continue with the new one, `germline export RUN --out FOLDER` and start a new run "
            "with model=FOLDER; or, to score the run on it, `germline eval RUN --task "
            f"{config.path}`"
        )


def make_examples(
    items: Sequence[tuple[str, PlacedRow]],
    answers: Sequence[str],
    facts: Sequence[Mapping[str, object]],
    *,
    chat: bool,
) -> tuple[Example, ...]:
    """Make the examples of a split."""
    made = zip(items, answers, facts, strict=True)
    return tuple(
        Example(index, text, gold, chat, more) for index, ((text, _), gold, more) in enumerate(made)
    )


def _filled(mark: re.Match[str], row: Mapping[str, Any], place: str) -> str:
    literal, field = mark.groups()
    if literal is not None:
        return f"{{{literal}}}"
    if field not in row:
        found = ", ".join(f"`{name}`" for name in row) or "none"
        raise GermlineError(
            f"{place}: task.template names the field `{field}`, which is missing; fields found: "
            f"{found}. Braces that are meant as text are written twice: {{{{{field}}}}}"
        )
    return as_text(row[field], field, place)


def _encoded(rows: Sequence[PlacedRow]) -> bytes:
    encoded = []
    for place, row in rows:
        try:
            encoded.append(json.dumps(row, sort_keys=True))
        except (TypeError, ValueError) as error:
            raise GermlineError(
                f"{place}: a row must be plain data (text, numbers, lists, mappings): {error}"
            ) from None
    return "\n".join(encoded).encode()
