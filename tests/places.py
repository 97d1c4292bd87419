"""Names of tests in tables: `<file>::<function>`, checked to exist."""

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path


def absent(places: Iterable[str]) -> list[str]:
    """Return the places at which there is no test."""
    missing = []
    for place in places:
        file, _, name = place.partition("::")
        if name not in _functions(file):
            missing.append(place)
    return missing


@cache
def _functions(file: str) -> frozenset[str]:
    tree = ast.parse((Path(__file__).parent / f"{file}.py").read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
