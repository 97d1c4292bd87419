"""Lists of fields on a page of the docs, and what a document has that they do not say."""

import re
from pathlib import Path

TYPES = {
    "text": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "list": (list,),
    "object": (dict,),
    "map": (dict,),  # its names are not listed
    "maps": (list,),  # of such maps
    "score": (dict,),  # it has a table of its own
}
FIELDS = re.compile(r"((?:`[^`]+`,?\s+)+)\(([a-z ]+)\)")
"""One or more names, and their type in parentheses."""


def field_tables(page: Path, title: str) -> dict[str, dict[str, str]]:
    """Return field -> type for every heading, below the one of this title, that has fields."""
    text = page.read_text(encoding="utf-8")
    (part,) = re.findall(rf"^## {title}\n(.*?)(?:^## |\Z)", text, re.MULTILINE | re.DOTALL)
    sections = re.split(r"^### (.*)$", part, flags=re.MULTILINE)
    tables = {
        heading.strip().replace("`", ""): _fields(text)
        for heading, text in zip(sections[1::2], sections[2::2], strict=True)
    }
    return {heading: table for heading, table in tables.items() if table}


def _fields(text: str) -> dict[str, str]:
    """Return field -> type of the list items of a section."""
    items = re.findall(r"^- (.*?)(?=^- |^$|\Z)", text, re.MULTILINE | re.DOTALL)
    return {
        name: kind
        for item in items
        for names, kind in FIELDS.findall(item.partition(":")[0])
        for name in re.findall(r"`([^`]+)`", names)
    }


def undocumented(
    document: object, table: dict[str, str], at: str = "", score: dict[str, str] | None = None
) -> list[str]:
    """Return the fields of a document that a table lacks, or that have another type there."""
    if isinstance(document, list):
        place = f"{at}[]"
        items = [] if "map" in table.get(place, "") else document
        return [one for item in items for one in undocumented(item, table, place, score)]
    if not isinstance(document, dict):
        return []
    found = []
    for name, value in document.items():
        path = f"{at}.{name}".lstrip(".")
        key = path if path in table else f"{at}.*".lstrip(".")
        if key not in table:
            found.append(f"{path} is not documented")
            continue
        words = table[key].split(" or ")
        if not any(_is_of(value, word) for word in words):
            found.append(f"{path} is documented as {table[key]}, found {value!r:.60}")
        elif "score" in words:
            found += [f"{path}: {one}" for one in undocumented(value, score or {})]
        elif not {"map", "maps"} & {*words}:
            found += undocumented(value, table, key, score)
    return found


def absent(documents: list[object], table: dict[str, str]) -> set[str]:
    """Return the fields of a table that none of the documents has."""
    seen: set[str] = set()
    for document in documents:
        _walk(document, table, "", seen)
    return set(table) - seen


def _walk(document: object, table: dict[str, str], at: str, seen: set[str]) -> None:
    for item in document if isinstance(document, list) else ():
        _walk(item, table, f"{at}[]", seen)
    if not isinstance(document, dict):
        return
    for name, value in document.items():
        path = f"{at}.{name}".lstrip(".")
        key = path if path in table else f"{at}.*".lstrip(".")
        seen.add(key)
        _walk(value, table, key, seen)


def _is_of(value: object, word: str) -> bool:
    if isinstance(value, bool):
        return word == "boolean"
    return isinstance(value, TYPES[word])
