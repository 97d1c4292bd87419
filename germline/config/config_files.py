"""Files of settings: shipped configs by name, YAML, task files, and the paths that settings hold.

A path such as `configs/demo.yaml` means the shipped file if it does not exist, so the commands of
the README work in any folder. Paths in a file are relative to the working directory, as in every
command; what does not exist there is looked up in the folder of the file, so that a config and its
task can be moved together. A run directory holds absolute paths.
"""

import re
import symtable
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from germline.registry import did_you_mean
from germline.types import GermlineError

PLACES = (Path(__file__).parents[1] / "configs", Path(__file__).parents[2] / "configs")
"""Their folder in a wheel, and in a checkout."""

NANO_DIR = Path(__file__).parents[1] / "nano"
"""The folder of the embedded model."""

TASK_SUFFIXES = {
    ".py": "python",
    ".jsonl": "jsonl",
    **dict.fromkeys((".parquet", ".csv", ".tsv", ".json", ".arrow"), "dataset"),
}
"""Kind of a task by the ending of its file; a Python file may hold an environment instead."""

PATHS = re.compile(
    r"model|space\.init_adapter|(retained\.[^.]+\.)?task\.(path|test_path|words|env)"
    r"|retained\.[^.]+\.(task|text)|classifier\.model"
)
"""Settings that may hold a path; other scorers than classifiers name models of their services."""


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
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = takewhile(re.compile(r"#\s*(?!germline )\S").match, lines)
    return " ".join(line.lstrip("# ").rstrip() for line in comment)


class _Loader(yaml.SafeLoader):
    """YAML 1.2: `010` is ten, `1e-3` is a number, and `yes` and `12:30` are texts."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - the library's signature
        names = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in names:
                raise yaml.constructor.ConstructorError(
                    problem=f"{key.value!r} is given twice", problem_mark=key.start_mark
                )
            names.add(str(key.value))
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Read an integer; PyYAML reads a leading zero as octal."""
        text = str(self.construct_scalar(node))
        return int(text, 0) if text[1:2].isalpha() else int(text)


_Loader.yaml_implicit_resolvers = {}
for _name, _pattern, _first in (
    ("merge", "<<", "<"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", "[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_name}", re.compile(f"(?:{_pattern})$"), list(_first)
    )
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


class _Dumper(yaml.SafeDumper):
    """Quotes a text that YAML 1.1 or YAML 1.2 would read as another type, such as `1e3`."""


for _first, _resolvers in _Loader.yaml_implicit_resolvers.items():
    for _tag, _regex in _resolvers:
        _Dumper.add_implicit_resolver(_tag, _regex, [_first])


def as_yaml(value: object, *, sort_keys: bool = False, **layout: Any) -> str:
    """Write JSON values so that a config file reads the same; `layout` is that of `yaml.dump`."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=sort_keys, **layout))


def read_value(text: str) -> object:
    """Read the value of an override; a value that is not YAML is a text."""
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except yaml.constructor.ConstructorError as error:
        raise GermlineError(f"config: override {text!r}: {error.problem}") from None
    except yaml.YAMLError:
        return text


def read_file(path: Path, what: str = "config") -> dict[str, Any]:
    """Read a file of settings; `what` begins an error."""
    try:
        with path.open(encoding="utf-8") as file:
            values = yaml.load(file, _Loader)  # a SafeLoader
    except FileNotFoundError:
        beside = (str(file) for file in path.parent.glob("*.yaml"))
        is_config = what == "config"
        hint = did_you_mean(str(path), [*(preset_configs() if is_config else ()), *beside])
        listed = "; see `germline list configs`" if is_config else ""
        raise GermlineError(f"{what}: there is no file {str(path)!r}{hint}{listed}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise GermlineError(f"{what}: {path} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise GermlineError(
            f"{what}: {path} must hold settings and their values, found {repr(values)[:80]}"
        )
    return values


def resolve_file_paths(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Replace each path that exists in this folder only by its location there."""

    def located(path: str) -> str:
        inside = folder / path
        return str(inside) if not Path(path).expanduser().exists() and inside.exists() else path

    resolved = change_paths(values, located)
    task = values.get("task")
    kind = task.get("kind") if isinstance(task, Mapping) else task
    if isinstance(kind, str) and Path(kind).suffix:  # `task: riddles.py`, and no short name
        place = located(kind)
        resolved["task"] = {**task, "kind": place} if isinstance(task, Mapping) else place
    return resolved


def absolute_path(name: str) -> str:
    """Write an existing file or folder as an absolute path; a hub id stays as it is."""
    path = Path(name).expanduser()
    if is_gguf(name):  # The file may be a link of the Hugging Face cache, whose targets differ.
        return str(path.parent.resolve() / path.name)
    return str(path.resolve()) if path.exists() else name


def model_source(model: str) -> str:
    """Return the folder of the embedded model for `nano`, and any other source as it is."""
    return str(NANO_DIR) if model == "nano" else model


def is_gguf(model: str) -> bool:
    """Whether a model is given as a GGUF file, the format of llama.cpp."""
    return Path(model).suffix.lower() == ".gguf"


def change_paths(
    values: Mapping[str, Any], change: Callable[[str], str], place: str = ""
) -> dict[str, Any]:
    """Return settings with a change to every path: of models, tasks, adapters and classifiers."""
    changed = dict(values)
    for name, value in values.items():
        if isinstance(value, Mapping):
            is_classifier = place.endswith("scorers.") and value.get("kind") == "classifier"
            below = "classifier." if is_classifier else f"{place}{name}."
            changed[name] = change_paths(value, change, below)
        elif isinstance(value, str | Path) and PATHS.fullmatch(f"{place}{name}"):
            changed[name] = value if (name, value) == ("model", "nano") else change(str(value))
    return changed


def kind_of_file(path: Path) -> str | None:
    """Return the kind of the task that a file holds, None where the ending tells none."""
    kind = TASK_SUFFIXES.get(path.suffix)
    return "environment" if kind == "python" and _has_environment(path) else kind


def _has_environment(path: Path) -> bool:
    """Tell whether a Python file names an environment, or has a class with `reset` and no reward.

    The file is parsed and not run. One that cannot be read says so when the task is made.
    """
    try:
        source: Any = path.expanduser().read_bytes()  # whose encoding Python finds
        file = symtable.symtable(source, str(path), "exec")
    except (OSError, SyntaxError, ValueError):
        return False
    symbols = [one for one in file.get_symbols() if not one.is_imported()]
    names = {one.get_name() for one in symbols if one.is_assigned()}
    has_reset = any(
        part.get_type() == "class" and "reset" in part.get_identifiers()
        for part in file.get_children()
    )
    return "environment" in names or (has_reset and not names & {"reward", "rubric"})
