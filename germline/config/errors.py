"""Format the errors of pydantic about a config: one line per mistake with setting and remedy."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from germline.config.config_files import TASK_SUFFIXES
from germline.config.reference import group_at, override_names
from germline.config.run_config import Config
from germline.registry import did_you_mean, sections, unknown_kind

MOST_LINES = 10
"""Largest number of mistakes that are shown; more usually mean another kind of file."""

LONGEST_VALUE = 80

MEANINGS = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "int_parsing": "must be an integer",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing_size": "must be an integer",
    "missing": "is missing",
    "tuple_type": "must be a list such as [a, b]",
    "dict_type": "must be a section of settings, such as {name: value}",
    "model_type": "must be a section of settings, such as {name: value}",
    "invalid_key": "the name of a setting must be a text",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}
"""Type of a pydantic error -> message in the terms of a config."""

OTHER_NAMES = {
    "lr": "strategy.learning_rate",
    "noise_scale": "strategy.sigma",
    "noise_std": "strategy.sigma",
    "std": "strategy.sigma",
    "pop_size": "strategy.population",
    "popsize": "strategy.population",
    "population_size": "strategy.population",
    "num_generations": "strategy.population",
    "per_device_train_batch_size": "batch_size",
    "train_batch_size": "batch_size",
    "max_tokens": "task.max_new_tokens",
    "max_completion_length": "task.max_new_tokens",
    "epochs": "generations",
    "steps": "generations",
    "max_steps": "generations",
    "iterations": "generations",
    "num_iterations": "generations",
    "model_name": "model",
    "model_name_or_path": "model",
    "output_dir": "--out",
}
"""Names of PyTorch, TRL, vLLM and other ES libraries -> the setting of the same meaning."""

REMEDIES = {"strategy.sigma": ": give auto, or a positive number such as 0.1"}
"""Setting -> what to give where a number is too small."""

KEY = "[key]"
"""pydantic's last part of a place where the key of a mapping is refused, after the key."""

TYPES = ("constrained-", "literal[", "tuple[")
"""Prefixes of pydantic's names for types, which it adds for settings with several types."""


def format_errors(error: ValidationError) -> str:
    """Return one line per mistake."""
    # A setting of several types is refused by each type; the first message is shown.
    lines: dict[str, str] = {}
    errors: list[dict[str, Any]] = [
        dict(one)
        for one in error.errors(include_url=False)
        # pydantic also reports a list as empty if all of its entries are invalid.
        if not (one["type"] == "too_short" and one["input"])
    ]
    words = {
        _setting(place): f", or {one['ctx']['expected']}"
        for one in errors
        if (place := _parts(one))[-1:] and place[-1].startswith("literal[")
    }
    for one in errors:
        place = _parts(one)
        setting = _setting(place)
        lines.setdefault(setting, _line(place, one, words.get(setting, "")))
    shown = list(lines.values())[:MOST_LINES]
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} more mistakes")
    return "\n        ".join(shown)


def _parts(error: Mapping[str, Any]) -> list[str]:
    return [str(part) for part in error["loc"]]


def _line(place: Sequence[str], error: dict[str, Any], also: str) -> str:
    """Return the line of one mistake; `also` lists further values that the setting accepts."""
    setting = _setting(place)
    if error["type"] == "extra_forbidden":
        return f"{setting}: unknown setting{_unknown(setting, place)}"
    if error["type"] == "union_tag_invalid":
        kind = error["ctx"]["tag"]
        hint = _file_hint(setting, kind)
        return f"{setting}: {unknown_kind(group_at(setting.split('.')), kind)}{hint}"
    message = str(error["msg"])
    if error["type"] == "value_error":
        message = message.removeprefix("Value error, ")
        if isinstance(error["input"], Mapping):
            # The message of a check over several settings names them and their values.
            return f"{setting}: {message}".removeprefix(": ")
    shown = repr(error["input"])
    shown = shown if len(shown) < LONGEST_VALUE else shown[: LONGEST_VALUE - 3] + "..."
    return f"{setting}: {_meaning(setting, error, message)}{also} (found {shown})".removeprefix(
        ": "
    )


def _meaning(setting: str, error: dict[str, Any], message: str) -> str:
    """Describe the accepted values in the terms of a config."""
    kinds = _kinds(setting.split("."))
    if error["type"] in ("dict_type", "model_type", "model_attributes_type") and kinds:
        return f"must be one of {', '.join(map(repr, kinds))}, or a section {{kind: ...}}"
    if error["type"] == "literal_error":
        given = error["input"]
        choices = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        hint = did_you_mean(given, choices) if isinstance(given, str) else ""
        return f"must be {error['ctx']['expected']}{hint}"
    wanted = message.replace("Input should be", "must be")
    meaning = MEANINGS.get(str(error["type"]), wanted.partition(", unable to ")[0])
    if kinds and error["type"] == "float_parsing":  # a name in the place of a number
        hint = did_you_mean(str(error["input"]), kinds)
        return meaning + (hint or f", or one of {', '.join(map(repr, kinds))}")
    if error["type"] == "greater_than":
        return meaning + REMEDIES.get(setting, "")
    if error["type"].startswith(("int_", "float_")):
        return meaning + _default(setting)
    return meaning


def _default(setting: str) -> str:
    """Return the default of a setting as an example, if it is the same number for all kinds."""
    defaults = {one.setting.default for one in override_names() if one.name == setting}
    if len(defaults) != 1 or not re.fullmatch(r"[0-9.]+", default := defaults.pop()):
        return ""
    return f", such as the default {default}"


def _file_hint(setting: str, kind: str) -> str:
    """Name the file that a task was given as without its ending, or the endings it may have."""
    if setting == "task" and Path(kind).suffix:
        return f"; the file of a task ends in one of {', '.join(TASK_SUFFIXES)}"
    files = [kind + suffix for suffix in TASK_SUFFIXES if Path(kind + suffix).is_file()]
    return f"; for the file {files[0]} give {files[0]}" if setting == "task" and files else ""


def _unknown(setting: str, place: Sequence[str]) -> str:
    """Suggest where an unknown setting belongs, and list the settings of its section."""
    known = _known_settings(place[:-1])
    *sections, name = setting.split(".")
    if "." in place[-1]:
        section, _, below = place[-1].partition(".")
        hint = f" in a file: write it as a section, {section}: {{{below}: ...}}"
    elif owners := [
        override.kinds
        for override in override_names()
        if override.name == setting and override.kinds
    ]:
        kinds = " or ".join(repr(kind) for kinds in owners for kind in kinds)
        hint = f" of this kind: {name} belongs to {'.'.join(sections)}.kind={kinds}"
    elif meant := _meant(name, known):
        hint = f" (did you mean {meant!r}?)"
    elif near := did_you_mean(place[-1], known):
        hint = near
    elif inside := [other for other in known if other in name.split("_")]:
        hint = f" (did you mean {' or '.join(map(repr, inside))}?)"
    elif elsewhere := [
        override.name for override in override_names() if override.name.rpartition(".")[2] == name
    ]:
        hint = f" (did you mean {' or '.join(repr(other) for other in dict.fromkeys(elsewhere))}?)"
    else:
        hint = ""
    return f"{hint}; known here: {', '.join(known)}"


def _meant(name: str, known: Sequence[str]) -> str | None:
    """Return the setting that has this name in another library, as an override spells it."""
    meant = OTHER_NAMES.get(name)
    if meant is None or any(
        override.name.rpartition(".")[2] == name for override in override_names()
    ):
        return None
    own = meant.rpartition(".")[2]
    return own if own in known else meant


def _setting(place: Sequence[str]) -> str:
    """Drop the tags pydantic adds for kinds and types: task.countdown.path -> task.path."""
    if place[-1:] == [KEY]:  # the name of a part, which the message gives
        place = place[:-2]
    return ".".join(
        part
        for index, part in enumerate(place)
        if not (index and part in {*_kinds(place[:index]), "number"}) and not part.startswith(TYPES)
    )


def _kinds(place: Sequence[str]) -> dict[str, type[Any]]:
    """Return the sections by kind of the setting at a place."""
    return sections(group_at(place))


def _known_settings(place: Sequence[str]) -> list[str]:
    section: type[BaseModel] = Config
    for index, part in enumerate(place):
        kinds = _kinds(place[: index + 1])
        if index + 1 < len(place) and place[index + 1] in kinds:
            section = kinds[place[index + 1]]
        elif len(kinds) == 1:
            section = next(iter(kinds.values()))
        elif part in section.model_fields:
            annotation = section.model_fields[part].annotation
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                section = annotation
    return sorted(section.model_fields)
