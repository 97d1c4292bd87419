"""Which kind of task a file is, where a config names the file alone: `task: my_task.py`."""

import ast
from pathlib import Path

SUFFIXES = {
    ".py": "python",
    ".jsonl": "jsonl",
    **dict.fromkeys((".parquet", ".csv", ".json", ".arrow"), "dataset"),
}
"""Kind of a task by the ending of its file; a Python file may hold an environment instead."""


def kind_of_file(path: Path) -> str | None:
    """Return the kind of the task that a file holds, None where the ending tells none."""
    kind = SUFFIXES.get(path.suffix)
    return "environment" if kind == "python" and _has_environment(path) else kind


def _has_environment(path: Path) -> bool:
    """Tell whether a Python file names an environment, or has a class with `reset` and no reward.

    The file is parsed and not run. One that cannot be read says so when the task is made.
    """
    try:
        body = ast.parse(path.expanduser().read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    names = {name for statement in body for name in _defined(statement)}
    has_reset = any(
        "reset" in _defined(member)
        for statement in body
        if isinstance(statement, ast.ClassDef)
        for member in statement.body
    )
    return "environment" in names or (has_reset and not names & {"reward", "rubric"})


def _defined(statement: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]
