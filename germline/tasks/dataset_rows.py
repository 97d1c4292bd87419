"""Rows of your own data to examples: the prompt, the gold answer, the split, and the digest.

A row is a mapping of plain values. Its prompt is the field `prompt` or `question`, or a template
with its fields; its answer is text, or any JSON value, written as JSON.

A row may hold a conversation instead, as chat datasets do: `messages`, or a `prompt` that is a
list, of {role, content}. The last user message is the prompt, the messages before it are the
context, and an assistant message at the end is the gold answer.
"""

import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from germline.config import CustomTask
from germline.tasks.json_files import PlacedRow, row_field, shown
from germline.tasks.splits import seeded_split
from germline.types import Example, GermlineError, Split

PROMPT_FIELDS = ("prompt", "question", "messages")
LARGEST = sys.float_info.max
ROLES = ("system", "user", "assistant")

_MARKS = re.compile(r"\{\{(\w+)\}\}|\{(\w+)\}")


def split_rows(
    train: Sequence[PlacedRow],
    test: Sequence[PlacedRow] | None,
    template: str | None,
    seed: int,
    name: str,
    *,
    by_row: bool = False,
) -> dict[Split, list[tuple[str, PlacedRow]]]:
    """Return prompts and rows of both splits; rows of the same prompt stay on one side.

    Args:
        train: rows to train on, or to split.
        test: held-out rows, if they are given.
        template: of the prompts.
        seed: of the split.
        name: where the rows come from.
        by_row: rows of the same prompt may be on both sides, equal rows may not: for environments,
            whose rows say more than the prompt.

    Raises:
        GermlineError: a prompt cannot be made, or there is nothing to split.
    """
    asked = [(row_prompt(row, place, template), (place, row)) for place, row in train]
    if test is not None:
        return {
            "train": asked,
            "test": [(row_prompt(row, place, template), (place, row)) for place, row in test],
        }
    keys = [_encoded([placed]) if by_row else text for text, placed in asked]
    sides = seeded_split(asked, keys, seed, name)
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
                f"{place}: a row needs a `prompt` or a `question`; fields found: {found}. Name the "
                "column that holds the prompt, as in task.columns={prompt: NAME}, or give a "
                "task.template with fields of a row"
            )
        text = (
            conversation(row[field], field, place).prompt
            if _is_conversation(field, row[field])
            else row_field(row, field, str, place)
        )
    else:
        text = _MARKS.sub(lambda mark: _filled(mark, row, place), template)
    if not text.strip():
        raise GermlineError(f"{place}: the prompt is empty: {text!r}")
    return text


class Conversation(NamedTuple):
    """The messages of a row: before its prompt, the prompt, and the gold answer if there is one."""

    context: tuple[tuple[str, str], ...]
    prompt: str
    answer: str | None


def conversation(messages: object, field: str, place: str) -> Conversation:
    """Read messages: a list of {role, content} that ends with a user or an assistant message.

    Raises:
        GermlineError: the messages have another form.
    """
    turns: list[tuple[str, str]] = []
    for number, message in enumerate(messages if isinstance(messages, (list, tuple)) else [None]):
        if not isinstance(message, Mapping) or {"role", "content"} - {*message}:
            raise GermlineError(
                f"{place}: `{field}` must be a list of messages such as "
                f'{{"role": "user", "content": "..."}}, found {repr(message)[:200]} at {number}'
            )
        role, content = message["role"], row_field(message, "content", str, place)
        if role not in ROLES:
            raise GermlineError(
                f"{place}: message {number} of `{field}` has the role {role!r}: use one of "
                f"{', '.join(ROLES)}"
            )
        turns.append((role, content))
    answer = turns.pop()[1] if turns and turns[-1][0] == "assistant" else None
    if not turns or turns[-1][0] != "user":
        raise GermlineError(
            f"{place}: `{field}` has no user message to answer: end it with a user message, or "
            "with a user message and the assistant's gold answer"
        )
    return Conversation(tuple(turns[:-1]), turns[-1][1], answer)


def row_conversation(row: Mapping[str, Any], place: str) -> Conversation | None:
    """Return the conversation of a row; None where its prompt is plain text."""
    field = next((name for name in PROMPT_FIELDS if name in row), None)
    if field is None or not _is_conversation(field, row[field]):
        return None
    return conversation(row[field], field, place)


def _is_conversation(field: str, value: object) -> bool:
    return field == "messages" or isinstance(value, (list, tuple))


def last_answer(row: Mapping[str, Any], place: str) -> str | None:
    """Return the assistant message that ends the conversation of a row; None without one."""
    found = row_conversation(row, place)
    return found.answer if found else None


def with_columns(rows: Sequence[PlacedRow], columns: Mapping[str, str]) -> list[PlacedRow]:
    """Return the rows with fields taken from the columns that `task.columns` names.

    Raises:
        GermlineError: a row has no such column.
    """
    for place, row in rows if columns else ():
        missing = next((name for name in columns.values() if name not in row), None)
        if missing is not None:
            raise GermlineError(
                f"{place}: task.columns names the column `{missing}`, which is missing; columns "
                f"found: {', '.join(f'`{name}`' for name in row) or 'none'}"
            )
    return [
        (place, {**row, **{field: row[name] for field, name in columns.items()}})
        for place, row in rows
    ]


def row_answer(row: Mapping[str, Any], field: str, place: str) -> str:
    """Return the gold answer of a row: text as it is, white space around it dropped.

    Raises:
        GermlineError: the field is missing or is not text that can be written.
    """
    return as_text(row_field(row, field, object, place), field, place).strip()


def sample_weight(row: Mapping[str, Any], field: str | None, place: str) -> dict[str, float]:
    """Return the field with the weight of a row as facts of its example; none without a field.

    Raises:
        GermlineError: the weight is missing, or is no number from 0 on.
    """
    if field is None:
        return {}
    if field not in row:
        found = ", ".join(f"`{name}`" for name in row) or "none"
        raise GermlineError(
            f"{place}: the field `{field}`, which task.sample_weight names, is missing; fields "
            f"found: {found}. Name a field that every row has, as in task.sample_weight=NAME"
        )
    value = row[field]
    # Python has whole numbers that no float holds.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        raise GermlineError(
            f"{place}: the field `{field}`, which task.sample_weight names, must be a number from "
            f"0 on, found {shown(value)}"
        )
    return {field: float(value)}


def as_text(value: object, field: str, place: str) -> str:
    """Write a value of a row as text: text as it is, anything else as JSON.

    Raises:
        GermlineError: the value is neither.
    """
    text = value
    if not isinstance(value, str):
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
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
    """Refuse rows that are not those a run was begun with.

    Raises:
        GermlineError: the digests differ.
    """
    if config.digest in (None, found):
        return
    digests = f"(task.digest was {str(config.digest)[:12]}, is now {found[:12]})"
    if config.kind == "rows":
        raise GermlineError(
            f"data: the rows are not those this run began with {digests}. Give the old rows; or, "
            "to continue with the new ones, germline.export(path, FOLDER, 'merged') and start a "
            "new run with model=FOLDER; or, to score the run on them, germline.evaluate(path, "
            "task='rows', data=rows, reward=REWARD, out=FILE)"
        )
    raise GermlineError(
        f"task.path: {config.place} or its rows have changed since this run began {digests}. "
        "Restore the old file; or, to continue with the new one, `germline export RUN --merged "
        "--out FOLDER` and start a new run with model=FOLDER; or, to score the run on it, "
        f"`germline eval RUN --task {config.place}`"
    )


def make_examples(
    items: Sequence[tuple[str, PlacedRow]],
    answers: Sequence[str],
    facts: Sequence[Mapping[str, object]],
    *,
    chat: bool,
    template: str | None,
) -> tuple[Example, ...]:
    """Make the examples of a split.

    Raises:
        GermlineError: a row has messages before its prompt, and there is no chat to send them in.
    """
    made = zip(items, answers, facts, strict=True)
    return tuple(
        Example(index, text, gold, chat, more, _context(row, place, chat=chat, template=template))
        for index, ((text, (place, row)), gold, more) in enumerate(made)
    )


def _context(
    row: Mapping[str, Any], place: str, *, chat: bool, template: str | None
) -> tuple[tuple[str, str], ...]:
    found = row_conversation(row, place) if template is None else None
    context = found.context if found else ()
    if context and not chat:
        raise GermlineError(
            f"{place}: the row has {len(context)} messages before its prompt, which "
            "task.chat=false would drop: set task.chat=true, or write them into a task.template"
        )
    return context


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
        except (TypeError, ValueError, RecursionError) as error:
            raise GermlineError(
                f"{place}: a row must be plain data (text, numbers, lists, mappings): {error}"
            ) from None
    return "\n".join(encoded).encode()
