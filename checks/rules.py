"""The project rules that no off-the-shelf tool checks; `make rules` runs them.

Every rule is a function from one file to its violations.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("germline", "tests", "benchmarks", "checks", "examples", "docs")
LONGEST_FILE = 400
LONGEST_SUMMARY = 100
VAGUE_NAMES = ("utils", "util", "helpers", "common", "misc")
UNFINISHED = re.compile(r"\b(?:TO[D]O|FI[X]ME|XX[X])\b")
RETIRED = {
    "Behaviour": "DegenerateTextShares",
    "Coordinates": "VectorPerturbation",
    "Crew": "WorkerPool",
    "Door": "Transport",
    "Drawn": "MemberRef",
    "Kept": "EnsembleMember",
    "Move": "MeanUpdate",
    "Odds": "Probabilities",
    "Seat": "WorkerSlot",
    "Seeded": "SeedPerturbation",
    "Sheet": "PackedBatch",
    "Silence": "ZeroSignalGrowth",
    "Sounding": "SigmaProbe",
    "StandsTwice": "DuplicateKeyError",
    "Stretch": "SigmaUpdate",
    "Told": "AdaptiveValue",
    "Weighed": "AdvantageRow",
    "as_told": "strip_offsets",
    "believes": "is_valid_result",
    "centre": "center",
    "crew": "pool",
    "door": "transport",
    "hand_out": "dispatch",
    "luck": "sampling_noise",
    "lucks": "sampling_noises",
    "muster": "wait_ready",
    "noise_name": "noise_stream",
    "noise_round": "noise_generation",
    "odds": "probabilities",
    "seat": "slot",
    "sounding": "sigma_probe",
}
"""Retired names -> the usual names that replaced them."""

SENTENCE_BREAK = re.compile(r"[.!?]\s+[A-Z]")


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file: its path under the root, and its text."""

    path: Path
    text: str


Rule = Callable[[Source], Iterator[str]]


def length_is_bounded(source: Source) -> Iterator[str]:
    """Report files that are too long."""
    lines = len(source.text.splitlines())
    if lines > LONGEST_FILE:
        yield f"{lines} lines, over {LONGEST_FILE}: give a part of it a file of its own"


def name_says_what_it_is(source: Source) -> Iterator[str]:
    """Report module names that do not describe the content."""
    for part in (*source.path.parent.parts, source.path.stem):
        if part in VAGUE_NAMES:
            yield f"{part!r} names nothing in particular: call it after what it holds"


def opens_with_one_sentence(source: Source) -> Iterator[str]:
    """Report modules whose docstring does not begin with one sentence."""
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
    """Report notes about unfinished work."""
    for number, line in enumerate(source.text.splitlines(), start=1):
        if found := UNFINISHED.search(line):
            yield f"line {number}: {found.group()} marks unfinished work: finish it or take it out"


def no_identifier_is_a_retired_word(source: Source) -> Iterator[str]:
    """Report identifiers that contain a retired word, and its replacement."""
    if source.path == Path("checks/rules.py"):
        return
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.NAME and (word := RETIRED.get(token.string)):
            yield f"line {token.start[0]}: {token.string!r} is {word!r} here"


RULES: tuple[Rule, ...] = (
    no_identifier_is_a_retired_word,
    length_is_bounded,
    name_says_what_it_is,
    opens_with_one_sentence,
    nothing_is_left_for_later,
)


def sources(root: Path) -> Iterator[Source]:
    """Return the Python files that the rules apply to, in a stable order."""
    inside = (path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    for path in sorted({*root.glob("*.py"), *inside}):
        yield Source(path.relative_to(root), path.read_text(encoding="utf-8"))


def slow_tests_exist(root: Path, files: list[Source]) -> Iterator[str]:
    """Report lines of tests/slow.txt that name no test; cases in brackets are not looked up."""
    texts = {file.path.as_posix(): file.text for file in files}
    for line in (root / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines():
        path, *names = line.partition("[")[0].split("::")
        places = [rf"(?:def|class) {re.escape(name)}\b" for name in names]
        if path not in texts or not all(re.search(place, texts[path]) for place in places):
            yield f"tests/slow.txt: no test {line}"


def violations(root: Path) -> list[str]:
    """Return one line per broken rule, as `file: what is wrong`."""
    files = list(sources(root))
    of_files = (
        f"{file.path}: {complaint}" for file in files for rule in RULES for complaint in rule(file)
    )
    return [*of_files, *slow_tests_exist(root, files)]


def main() -> int:
    """Print the violations in this repository; return 1 if there are any."""
    found = violations(Path(__file__).resolve().parents[1])
    print("\n".join(found) if found else "Project rules: all kept.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
