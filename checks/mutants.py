"""Do the tests notice a changed line? 400 sampled mutants of the package and what kills them.

    python -m checks.mutants sample          # writes checks/mutants.tsv, from a fixed seed
    python -m checks.mutants run 0 400       # plays a range of it in a copy of the tree

A mutant changes one operator or one constant. It is kept by the text of its line, so that
the same list is played before and after code moves: a mutant without its line is "gone".
The tests that are run are those whose file names the module or one of its public names.
"""

import argparse
import ast
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("mutants.tsv")
SEED, COUNT = 33, 400
TIMEOUT_S = 900
SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: (" is ", " is not "),
    ast.IsNot: (" is not ", " is "),
    ast.And: (" and ", " or "),
    ast.Or: (" or ", " and "),
}


class Mutant(NamedTuple):
    """One changed line: its file when it was sampled, its text before and after."""

    path: str
    before: str
    after: str


def candidates(path: Path) -> Iterator[Mutant]:
    """Yield the mutants of a file, each of one operator or constant on a line of its own text."""
    source = path.read_text(encoding="utf-8")
    rows, name = source.splitlines(), str(path.relative_to(ROOT))
    for node in ast.walk(ast.parse(source)):
        place: tuple[ast.expr, ast.expr, ast.AST]
        if isinstance(node, ast.BinOp):
            place = node.left, node.right, node.op
        elif isinstance(node, ast.Compare):
            place = node.left, node.comparators[0], node.ops[0]
        elif isinstance(node, ast.BoolOp):
            place = node.values[0], node.values[1], node.op
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            row, start, end = rows[node.lineno - 1], node.col_offset, node.end_col_offset
            changed = (
                str(not node.value) if isinstance(node.value, bool) else f"({node.value!r} + 1)"
            )
            if row.isascii():
                yield Mutant(name, row, row[:start] + changed + row[end:])
            continue
        else:
            continue
        left, right, operator = place
        old, new = SWAPS.get(type(operator), ("", ""))
        begin, stop = left.end_col_offset, right.col_offset
        row = rows[right.lineno - 1]
        if old and left.end_lineno == right.lineno and row.isascii() and old in row[begin:stop]:
            yield Mutant(name, row, row[:begin] + row[begin:stop].replace(old, new) + row[stop:])


def sample() -> list[Mutant]:
    """Return the mutants of a fixed seed; lines that occur twice in a file are left out."""
    found = []
    for path in sorted((ROOT / "germline").rglob("*.py")):
        counts = Counter(path.read_text(encoding="utf-8").splitlines())
        found += [mutant for mutant in candidates(path) if counts[mutant.before] == 1]
    return sorted(random.Random(SEED).sample(found, COUNT))


def read_list() -> list[Mutant]:
    """Return the committed mutants."""
    rows = LIST.read_text(encoding="utf-8").splitlines()
    return [Mutant(*row.split("\t")) for row in rows]


def place(mutant: Mutant, tree: Path) -> Path | None:
    """Return the one file that has the mutant's line now, its own file first."""
    own = tree / mutant.path
    paths = [own] if own.exists() else []
    for path in [*paths, *sorted((tree / "germline").rglob("*.py"))]:
        if path.read_text(encoding="utf-8").splitlines().count(mutant.before) == 1:
            return path
    return None


def tests_of(path: Path, tree: Path) -> list[str]:
    """Return the test files that name a module or one of its public classes and functions."""
    module = ".".join(path.relative_to(tree).with_suffix("").parts)
    defined = ast.parse(path.read_text(encoding="utf-8")).body
    names = [
        node.name
        for node in defined
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    ]
    asked = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in [module, path.stem, *names]))
    tests = sorted((tree / "tests").glob("test_*.py"))
    return [str(test) for test in tests if asked.search(test.read_text(encoding="utf-8"))]


def outcome(mutant: Mutant, tree: Path) -> str:
    """Return killed, survived or gone for one mutant, which is undone afterwards."""
    path = place(mutant, tree)
    if path is None:
        return "gone"
    original = path.read_text(encoding="utf-8")
    tests = tests_of(path, tree)
    if not tests:
        return "survived"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    path.write_text(original.replace(f"{mutant.before}\n", f"{mutant.after}\n"), encoding="utf-8")
    try:
        done = subprocess.run(
            command, cwd=tree, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "killed"
    finally:
        path.write_text(original, encoding="utf-8")
    return "killed" if done.returncode else "survived"


def main() -> None:
    """Write the list, or play a range of it and print every mutant's outcome and the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=("sample", "run"))
    parser.add_argument("first", type=int, nargs="?", default=0, help="number of the first mutant")
    parser.add_argument("last", type=int, nargs="?", default=COUNT, help="and of the one to end at")
    given = parser.parse_args()
    if given.task == "sample":
        LIST.write_text("".join("\t".join(one) + "\n" for one in sample()), encoding="utf-8")
        return
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        shutil.copytree(
            ROOT, tree, ignore=shutil.ignore_patterns(".venv", ".git", "models", "site")
        )
        for number, mutant in enumerate(read_list()[given.first : given.last], start=given.first):
            result = outcome(mutant, tree)
            counts[result] += 1
            print(f"{number}\t{result}\t{mutant.path}\t{mutant.after.strip()}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
