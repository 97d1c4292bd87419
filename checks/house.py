"""The house rules that no off-the-shelf tool checks; `make house` runs them.

Every rule is a function from one file to what is wrong in it. `tests/test_house.py` shows for each
that it finds a violation, so a rule cannot fall asleep.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("germline", "tests", "benchmarks", "checks", "examples", "docs")
LONGEST_FILE = 400
LONGEST_SUMMARY = 100
ROOMLESS_NAMES = ("utils", "util", "helpers", "common", "misc")
UNFINISHED = re.compile(r"\b(?:TO[D]O|FI[X]ME|XX[X])\b")
SENTENCE_BREAK = re.compile(r"[.!?]\s+[A-Z]")


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file: its place under the root, and its text."""

    path: Path
    text: str


Rule = Callable[[Source], Iterator[str]]


def length_is_bounded(source: Source) -> Iterator[str]:
    """Refuse files nobody reads in one sitting."""
    lines = len(source.text.splitlines())
    if lines > LONGEST_FILE:
        yield f"{lines} lines, over {LONGEST_FILE}: give a part of it a file of its own"


def name_says_what_it_is(source: Source) -> Iterator[str]:
    """Refuse the names of rooms for everything."""
    for part in (*source.path.parent.parts, source.path.stem):
        if part in ROOMLESS_NAMES:
            yield f"{part!r} names no room: call it after what it holds"


def opens_with_one_sentence(source: Source) -> Iterator[str]:
    """Ask every module for a first line fit for a table of contents."""
    tree = ast.parse(source.text)
    if not tree.body:
        return  # an empty __init__.py
    docstring = ast.get_docstring(tree)
    if not docstring:
        yield "no module docstring: open with one sentence that says what the file is"
        return
    first = docstring.splitlines()[0].strip()
    if not first.endswith((".", "!", "?")) or SENTENCE_BREAK.search(first):
        yield f"the first line of the docstring must be one whole sentence, found {first!r}"
    if len(first) > LONGEST_SUMMARY:
        yield f"the first line of the docstring has {len(first)} characters, over {LONGEST_SUMMARY}"


def nothing_is_left_for_later(source: Source) -> Iterator[str]:
    """Refuse notes to self: what is open is said where people plan, not in the code."""
    for number, line in enumerate(source.text.splitlines(), start=1):
        if found := UNFINISHED.search(line):
            yield f"line {number}: {found.group()} marks unfinished work: finish it or take it out"


RULES: tuple[Rule, ...] = (
    length_is_bounded,
    name_says_what_it_is,
    opens_with_one_sentence,
    nothing_is_left_for_later,
)


def sources(root: Path) -> Iterator[Source]:
    """Find the Python files the rules hold for, in a stable order."""
    inside = (path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    for path in sorted({*root.glob("*.py"), *inside}):
        yield Source(path.relative_to(root), path.read_text(encoding="utf-8"))


def violations(root: Path) -> list[str]:
    """Return one line per broken rule, as `file: what is wrong`."""
    return [
        f"{source.path}: {complaint}"
        for source in sources(root)
        for rule in RULES
        for complaint in rule(source)
    ]


def main() -> int:
    """Print what is wrong in this repository; the exit status says whether anything is."""
    found = violations(Path(__file__).resolve().parents[1])
    print("\n".join(found) if found else "House rules: all kept.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
