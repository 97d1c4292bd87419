"""Rows of your own data to examples: prompts, gold answers, the split, and the digest.

Rows of the same conversation are in the same split. A gold answer is text or a number; a list of
them, any of which is right; or messages, the last one of which is the assistant's answer.

A row may hold a conversation, as chat datasets do: `messages`, or a `prompt` that is a list, of
{role, content}. The last user message is the prompt, the messages before it are the context, and an
assistant message at the end is the gold answer.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from germline.config import CustomTask
from germline.errors import shown
from germline.tasks.row_files import GivenRows, PlacedRow, field_value, fields_found, row_field
from germline.tasks.splits import SplitTask, seeded_split
from germline.types import Example, GermlineError, Split

PROMPT_FIELDS = ("prompt", "question", "messages")
ROLES = ("system", "user", "assistant")

_MARKS = re.compile(r"\{\{(\w+)\}\}|\{(\w+(?:\.[A-Za-z_]\w*)*)\}")


class Conversation(NamedTuple):
    """The messages of a row: before its prompt, the prompt, and the gold answer if there is one."""

    context: tuple[tuple[str, str], ...]
    prompt: str
    answer: str | None


class Row(NamedTuple):
    """A row, what it asks, and its gold answer and facts, which `Gold` makes."""

    place: str
    fields: Mapping[str, Any]
    asked: Conversation
    answer: str = ""
    facts: Mapping[str, object] = {}


Gold = Callable[[Row], tuple[str, Mapping[str, object]]]
"""Row -> the gold answer (empty: none) and the facts of its example."""


def rows_to_examples(
    given: GivenRows,
    config: CustomTask,
    gold: Gold,
    *,
    code: bytes = b"",
    by_row: bool = False,
    distinct: bool = False,
) -> tuple[dict[Split, tuple[Example, ...]], str]:
    """Return the examples of both splits, and the digest of the rows and the code.

    The splits are the held-out rows as given, or a seeded one in which rows that ask the same after
    the same messages stay together.

    Args:
        given: the rows.
        config: names the columns, the template and the seed of the split.
        gold: makes the gold answer and the facts of a row.
        code: bytes that belong to the task beside its rows.
        by_row: only equal rows stay together: for environments, whose rows say more than the
            prompt.
        distinct: of rows that ask the same, the first one is taken.
    """
    train, test = (with_columns(rows, config.columns) for rows in (given.train, given.test))
    digest = _checked_digest(config, code, train, test)
    rows, held_out = _read(train, config, gold), _read(test, config, gold)
    if distinct:
        rows, held_out = _first_of_each(rows), _first_of_each(held_out)
    if held_out:
        sides = rows, held_out
    else:
        keys: list[object] = [
            _encoded([(row.place, row.fields)]) if by_row else row.asked[:2] for row in rows
        ]
        sides = seeded_split(rows, keys, config.split_seed, config.place)

    def example(index: int, row: Row) -> Example:
        context, prompt, _ = row.asked
        return Example(index, prompt, row.answer, config.sends_chats, row.facts, context)

    return SplitTask.by_split(sides, example), digest


def with_columns(rows: Sequence[PlacedRow], columns: Mapping[str, str]) -> list[PlacedRow]:
    """Return the rows with fields taken from the columns that `task.columns` names."""
    for place, row in rows if columns else ():
        for name in columns.values():
            if field_value(row, name) is None:
                raise GermlineError(
                    f"{place}: task.columns names the column `{name}`, which is missing; "
                    f"{fields_found(row)}"
                )
    return [
        (place, {**row, **{field: field_value(row, name) for field, name in columns.items()}})
        for place, row in rows
    ]


def gold_answers(row: Row, field: str) -> tuple[str, ...]:
    """Return the gold answers of a row, any of which is right; empty if it has none.

    Without the field, an assistant message at the end of the conversation is the answer.
    """
    value = field_value(row.fields, field)
    if value is None:
        return () if row.asked.answer is None else (row.asked.answer.strip(),)
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
        role, content = read_messages(value, field, row.place)[-1]
        if role == "assistant":
            return (content.strip(),)
    values = value if isinstance(value, (list, tuple)) else [value]
    if not values or not all(isinstance(one, str | int | float) for one in values):
        raise GermlineError(
            f"{row.place}: the field `{field}` must be text or a number, a list of them, or "
            f"messages that end with the assistant's; found {shown(value)}. A field inside it is "
            f"named with a dot, such as {field}.text"
        )
    return tuple(as_text(one, field, row.place).strip() for one in values)


def shown_answer(row: Row, field: str) -> str:
    """Return the gold answer for checks and displays where no reward needs it; "" without one."""
    try:
        return next(iter(gold_answers(row, field)), "")
    except GermlineError:
        return as_text(field_value(row.fields, field), field, row.place).strip()


def _first_of_each(rows: Sequence[Row]) -> list[Row]:
    first: dict[object, Row] = {}
    for row in rows:
        first.setdefault(row.asked[:2], row)
    return [*first.values()]


def _read(rows: Sequence[PlacedRow], config: CustomTask, gold: Gold) -> list[Row]:
    read = []
    for place, fields in rows:
        row = Row(place, fields, row_conversation(fields, place, config.template))
        if row.asked.context and not config.sends_chats:
            raise GermlineError(
                f"{place}: task.chat=false would drop the messages before the prompt: use "
                "task.chat=true, or write them into a task.template"
            )
        answer, facts = gold(row)
        read.append(row._replace(answer=answer, facts=facts))
    return read


def _checked_digest(
    config: CustomTask, code: bytes, train: Sequence[PlacedRow], test: Sequence[PlacedRow]
) -> str:
    """Return the SHA-256 of a task, its code and rows, which is the one a run was begun with."""
    sums = hashlib.sha256()
    for part in (code, _encoded(train), _encoded(test)):
        sums.update(hashlib.sha256(part).digest())
    found, recorded = sums.hexdigest(), config.digest
    if recorded not in (None, found):
        raise GermlineError(
            f"task.digest={recorded[:12]}: {config.place} or its rows have changed since this "
            f"run began (now {found[:12]}). Restore them; or export the run and start a new one "
            "with model=FOLDER; or score it on the new ones, `germline eval RUN --task FILE`"
        )
    return found


def _encoded(rows: Sequence[PlacedRow]) -> bytes:
    return "\n".join(_as_json(row, "a row", place, sort_keys=True) for place, row in rows).encode()


def row_conversation(row: Mapping[str, Any], place: str, template: str | None) -> Conversation:
    """Return what a row asks; without messages it is a prompt alone."""
    if template is not None:
        text = _MARKS.sub(lambda mark: _filled(mark, row, place), template)
        found = Conversation((), text, None)
    else:
        field = next((name for name in PROMPT_FIELDS if field_value(row, name) is not None), None)
        if field is None:
            raise GermlineError(
                f"{place}: a row needs a `prompt` or a `question`; {fields_found(row)}. Name its "
                "column, as in task.columns={prompt: NAME}, or give a task.template"
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
            found = shown(messages) if message is None else f"{shown(message)} at {number}"
            raise GermlineError(
                f"{place}: `{field}` must be a list of messages such as "
                f'{{"role": "user", "content": "..."}}, found {found}'
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
    if not isinstance(value, str):
        what = f"the field `{field}`"
        value = _as_json(value, what, place, ensure_ascii=False, allow_nan=False)
    return row_field({field: value}, field, str, place)


def _as_json(value: object, what: str, place: str, **options: bool) -> str:
    try:
        return json.dumps(value, **options)  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError) as error:
        found = f"found {shown(value)}: " if isinstance(error, ValueError) else ""  # NaN, infinity
        raise GermlineError(
            f"{place}: {what} must be plain data (text, finite numbers, lists, mappings): {found}"
            f"{error}"
        ) from None


def _conversation(messages: object, field: str, place: str) -> Conversation:
    turns = read_messages(messages, field, place)
    answer = turns.pop()[1] if turns and turns[-1][0] == "assistant" else None
    if not turns or turns[-1][0] != "user":
        raise GermlineError(
            f"{place}: `{field}` must end with a user message, or with a user message and the "
            "assistant's gold answer"
        )
    return Conversation(tuple(turns[:-1]), turns[-1][1], answer)


def _filled(mark: re.Match[str], row: Mapping[str, Any], place: str) -> str:
    literal, field = mark.groups()
    if literal is not None:
        return f"{{{literal}}}"
    if field_value(row, field) is None:
        raise GermlineError(
            f"{place}: task.template names the field `{field}`, which is missing; "
            f"{fields_found(row)}. Braces as text are written twice: {{{{{field}}}}}"
        )
    return as_text(row_field(row, field, object, place), field, place)
