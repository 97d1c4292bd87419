"""Files of settings: shipped configs by name, YAML, and task files that stand for a config.

A checkout has the shipped configs in `configs/`; a wheel contains that folder inside the package. A
path such as `configs/demo.yaml` means the shipped file if it does not exist, so the commands of the
README work in any folder. Errors of YAML name the line, and duplicate keys are errors.
"""

import ast
import re
from pathlib import Path
from typing import Any

import yaml

from germline.registry import did_you_mean
from germline.types import GermlineError

PLACES = (Path(__file__).parents[1] / "configs", Path(__file__).parents[2] / "configs")
"""Their folder in a wheel, and in a checkout."""

TASK_SUFFIXES = {
    ".py": "python",
    ".jsonl": "jsonl",
    **dict.fromkeys((".parquet", ".csv", ".json", ".arrow"), "dataset"),
}
"""Kind of a task by the ending of its file; a Python file may hold an environment instead."""

EXAMPLE = "settings like `task: countdown`"

DECIMAL = re.compile(r"[-+]?[0-9][0-9_]*")


def preset_configs() -> dict[str, Path]:
    """Return the shipped configs by name, such as `demo`."""
    folder = next((place for place in PLACES if place.is_dir()), None)
    if folder is None:
        return {}
    files = sorted(folder.rglob("*.yaml"))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def find_config(path: Path) -> Path:
    """Return an existing path unchanged, otherwise the shipped config of that name."""
    if path.exists():
        return path
    name = path.as_posix().removesuffix(".yaml").removeprefix("configs/")
    return preset_configs().get(name, path)


def config_summary(path: Path) -> str:
    """Return the comment at the top of a config file."""
    comment: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("#").strip()
        if not line.startswith("#") or text.startswith("germline ") or not text:
            break
        comment.append(text)
    return " ".join(comment)


class DuplicateKeyError(yaml.MarkedYAMLError):
    """A setting that is given twice; PyYAML would silently use the last value."""


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - the library's signature
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if (key.tag, key.value) in seen:
                problem = f"{key.value!r} is given twice; keep one of them"
                raise DuplicateKeyError(problem=problem, problem_mark=key.start_mark)
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Read `010` as ten: YAML 1.1 reads a leading zero as octal."""
        text = str(self.construct_scalar(node))
        if DECIMAL.fullmatch(text):
            return int(text.replace("_", ""))
        return int(super().construct_yaml_int(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def read_value(text: str) -> object:
    """Read the value of an override; a value that is not YAML is a text.

    Raises:
        DuplicateKeyError: a setting is given twice.
    """
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except DuplicateKeyError:
        raise
    except yaml.YAMLError:
        return text


def read_file(path: Path) -> dict[str, Any]:
    """Read a file of settings.

    Raises:
        GermlineError: the file is missing, is no YAML, or holds no settings.
    """
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # a SafeLoader
    except FileNotFoundError:
        beside = (str(file) for file in path.parent.glob("*.yaml"))
        hint = did_you_mean(str(path), [*preset_configs(), *beside])
        raise GermlineError(
            f"config: there is no file {str(path)!r}{hint}; `germline list configs` shows those "
            "that come with germline"
        ) from None
    except OSError as error:
        raise GermlineError(f"config: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise GermlineError(
            f"config: {path} is not UTF-8 text ({error.reason} at byte {error.start}): save it "
            "as UTF-8"
        ) from None
    except yaml.YAMLError as error:
        raise GermlineError(
            f"config: {path} is not valid YAML: {format_yaml_error(error)}"
        ) from None
    if not isinstance(values, dict):
        raise GermlineError(f"config: {path} {_no_settings(values)}")
    return values


def kind_of_file(path: Path) -> str | None:
    """Return the kind of the task that a file holds, None where the ending tells none."""
    kind = TASK_SUFFIXES.get(path.suffix)
    return "environment" if kind == "python" and _has_environment(path) else kind


def format_yaml_error(error: yaml.YAMLError) -> str:
    """Return one line with the position and the problem, and the text around it."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        return str(error)
    problem = str(getattr(error, "problem", None) or error)
    if "'\\t'" in problem:
        problem += "; indent with spaces, not with tabs"
    snippet = f"\n{mark.get_snippet()}" if mark.buffer else ""
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}{snippet}"


def _no_settings(values: object) -> str:
    if values is None:
        return f"is empty: write {EXAMPLE}"
    if isinstance(values, str):
        shown = values if len(values) <= 40 else values[:37] + "..."
        return f"must hold {EXAMPLE}, found the text {shown!r}: a space must follow the colon"
    return f"must hold {EXAMPLE}, found {type(values).__name__}"


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
