"""Checks of the arguments of a caller from Python, and the config of what was given."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from germline.config import Conciseness, Config, load_config
from germline.config.loader import read_settings
from germline.config.rules import check_rules
from germline.environments.tools import is_unicode
from germline.tasks.python_inputs import NO_INPUTS, PythonInputs
from germline.types import GermlineError


def with_inputs(source: Config | Mapping[str, Any] | Path | str, inputs: PythonInputs) -> Config:
    """Return the config of a run with rewards or rows from Python: it records their names."""
    if inputs == NO_INPUTS:
        if not isinstance(source, Config):
            return load_config(source)
        check_rules(source)
        return source
    values = read_settings(source) if not isinstance(source, Config) else source.model_dump()
    task = values.get("task", {})
    if isinstance(source, Config) and source.task == Conciseness():
        task = {}  # the default, which nobody asked for
    task = {"kind": task} if isinstance(task, str) else dict(task)
    if inputs.rows is not None and task.setdefault("kind", "rows") != "rows":
        raise GermlineError(
            f"data: task={task['kind']} has examples of its own: leave out data, or drop the "
            "task from the config"
        )
    if inputs.rewards:
        task["reward_functions"] = inputs.weights
    return load_config({**values, "task": task or "conciseness"})


def check_texts(name: str, values: object) -> None:
    """Refuse a text alone, which would be read as its characters, and unpaired surrogates."""
    texts = values if isinstance(values, Sequence) and not isinstance(values, str) else [None]
    if not all(isinstance(text, str) and is_unicode(text) for text in texts):
        raise GermlineError(f"{name} must be a list of Unicode texts, found {values!r:.80}")


def check_choice(name: str, value: object, choices: Sequence[str | None]) -> None:
    """Check that an argument is one of the choices, of which None is the default."""
    if value not in choices:
        raise GermlineError(f"{name} must be {' or '.join(map(repr, choices))}, found {value!r}")


def check_limit(limit: object) -> None:
    """Refuse a number of examples below 1: a negative one would leave the last examples out."""
    if limit is not None:
        check_count("limit", limit, ", or None for all")


def check_count(name: str, count: object, otherwise: str = "") -> None:
    """Refuse an argument that is no number from 1 on."""
    if not isinstance(count, int) or count < 1:
        raise GermlineError(f"{name} must be a number from 1 on{otherwise}, found {count!r}")
