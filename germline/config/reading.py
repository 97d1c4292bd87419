"""YAML and dotted overrides to a Config, with one clear line per mistake."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from germline.config.schedules import Cosine
from germline.config.settings import KINDS, Config
from germline.config.shipped import located, shipped
from germline.registry import did_you_mean
from germline.types import GermlineError


def load_config(source: Path | str | Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file or mapping, apply dotted overrides, and validate.

    A run directory, or the run.json in it, stands for the config of that run: so a run is repeated.
    Relative paths inside a config are relative to the working directory, as in every other command.
    The configs that come with germline go by name as well, such as `demo`.

    Raises:
        GermlineError: the file is missing or not YAML, or a setting is unknown or out of range.
    """
    values = dict(source) if isinstance(source, Mapping) else _read_file(located(Path(source)))
    for override in overrides:
        values = _override(values, override)
    return validated(values)


def smoke(config: Config) -> Config:
    """Shrink a run to two small generations of the nano model, to see in seconds whether it works.

    Task, space, strategy and shaping stay what they are; population, batch and lengths do not.
    """
    values = config.model_dump()
    small = ["model=nano", "engine=inprocess", "generations=2", "batch=4", "held_out.examples=4"]
    small += ["strategy.population=4", "task.max_new_tokens=8", "record.snapshot_every=1"]
    for name in ("sigma", "learning_rate"):
        if isinstance(getattr(config.strategy, name), Cosine):
            small.append(f"strategy.{name}.warmup=0")
    return load_config(values, small)


def validated(values: Mapping[str, Any]) -> Config:
    """Turn plain values into a Config, with one clear line per mistake.

    Raises:
        GermlineError: a setting is unknown, missing or out of range.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        # Where a setting may be of several types, each refuses it: the first says it.
        explained: dict[str, str] = {}
        for one in error.errors(include_url=False):
            setting = ".".join(_without_union_tags([str(part) for part in one["loc"]]))
            explained.setdefault(setting, _explain(dict(one)))
        lines = explained.values()
        raise GermlineError("config: " + "\n        ".join(lines)) from None


def _read_file(path: Path) -> dict[str, Any]:
    """Read a config file; of a run, the config it was begun with."""
    file = path / "run.json" if (path / "run.json").is_file() else path
    values = _read_yaml(file)
    config = values.get("config")
    return config if "format_version" in values and isinstance(config, dict) else values


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = did_you_mean(str(path), shipped())
        raise GermlineError(
            f"config: there is no file {str(path)!r}{hint}; `germline list configs` shows those "
            "that come with germline"
        ) from None
    except OSError as error:
        raise GermlineError(f"config: {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise GermlineError(f"config: {path} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise GermlineError(
            f"config: {path} must hold settings like `task: countdown`, found "
            f"{type(values).__name__}"
        )
    return values


def _override(values: dict[str, Any], override: str) -> dict[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise GermlineError(f"config: override {override!r} must look like strategy.sigma=0.002")
    try:
        value = yaml.safe_load(text) if text else ""
    except yaml.YAMLError:
        value = text
    if isinstance(value, str):
        value = _number(value)
    return _set(values, key.split("."), value)


def _number(text: str) -> object:
    """YAML 1.1 reads 1e-3 as a string; people mean the number."""
    try:
        return float(text)
    except ValueError:
        return text


def _set(values: Mapping[str, Any], path: Sequence[str], value: object) -> dict[str, Any]:
    head, *rest = path
    if not rest:
        return {**values, head: value}
    below = values.get(head, {})
    below = {"kind": below} if isinstance(below, str) else below
    if not isinstance(below, Mapping):
        raise GermlineError(
            f"config: {head} is a single value ({below!r}), so {'.'.join(path)} cannot be set"
        )
    return {**values, head: _set(below, rest, value)}


def _explain(error: dict[str, Any]) -> str:
    place = [str(part) for part in error["loc"]]
    setting = ".".join(_without_union_tags(place))
    if error["type"] == "extra_forbidden":
        known = _known_settings(place[:-1])
        hint = did_you_mean(place[-1], known)
        return f"{setting}: unknown setting{hint}; known here: {', '.join(known)}"
    if error["type"] == "union_tag_invalid":
        return f"{setting}: {_unknown_kind(error['ctx'])}"
    message = str(error["msg"]).removeprefix("Value error, ")
    if not setting:
        return message  # of settings in several sections, which it names itself
    shown = repr(error["input"])
    return f"{setting}: {message} (found {shown if len(shown) < 80 else shown[:77] + '...'})"


def _unknown_kind(context: Mapping[str, Any]) -> str:
    known = [one for one in re.findall(r"'(\w+)'", context["expected_tags"]) if one != "number"]
    found = context["tag"]
    choices = ", ".join(map(repr, known))
    return f"there is no kind {found!r}{did_you_mean(found, known)}; choose one of {choices}"


def _without_union_tags(place: Sequence[str]) -> list[str]:
    """Drop the tag pydantic adds after a section's name: task.countdown.path -> task.path."""
    return [
        part
        for index, part in enumerate(place)
        if not (index and part in {*KINDS.get(place[index - 1], {}), "number"})
    ]


def _known_settings(place: Sequence[str]) -> list[str]:
    section: type[BaseModel] = Config
    for index, part in enumerate(place):
        kinds = KINDS.get(part, {})
        if index + 1 < len(place) and place[index + 1] in kinds:
            section = kinds[place[index + 1]]
        elif len(kinds) == 1:
            section = next(iter(kinds.values()))
        elif part in section.model_fields:
            annotation = section.model_fields[part].annotation
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                section = annotation
    return sorted(section.model_fields)
