"""Overrides of settings: `strategy.sigma=0.002`, and YAML files laid over the settings before them.

A section of another kind replaces the whole section, and the settings that this drops are noted.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from germline.config.config_files import DuplicateKeyError, read_file, read_value
from germline.config.file_paths import resolve_file_paths
from germline.config.reference import group_at
from germline.registry import sections
from germline.types import GermlineError


class OverriddenSettings:
    """Settings on which overrides are laid, in order.

    Attributes:
        values: the settings.
        dropped: replaced sections, each with a sentence about the settings dropped with it.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        self.dropped: list[tuple[str, str]] = []

    def apply(self, override: str) -> None:
        """Apply `setting=value` or the name of a YAML file.

        Raises:
            GermlineError: it is neither, the file cannot be read, or the setting has no settings.
        """
        if _is_file(override):
            file = Path(override)
            above = resolve_file_paths(read_file(file), file.parent)
            self.values = self._laid_over(self.values, above)
            return
        key, equals, text = override.partition("=")
        path = key.split(".")
        if not equals or not all(path):
            raise GermlineError(
                f"config: override {override!r} must look like strategy.sigma=0.002, or "
                "be a .yaml file of settings"
            )
        try:
            value = read_value(text) if text else ""
        except DuplicateKeyError as error:
            raise GermlineError(f"config: override {override!r}: {error.problem}") from None
        if isinstance(value, str) and not text.lstrip().startswith(("'", '"')):
            value = _number(value)
        self.values = self._with(self.values, path, value)

    def dropped_near(self, error: str) -> list[str]:
        """Return the sentences about the sections that the text of an error names."""
        return [
            note
            for name, note in self.dropped
            if re.search(rf"(?<![\w.]){re.escape(name)}[.:=]", error)
        ]

    def _laid_over(
        self, below: Mapping[str, Any], above: Mapping[str, Any], prefix: str = ""
    ) -> dict[str, Any]:
        merged = dict(below)
        for key, value in above.items():
            old = merged.get(key)
            if isinstance(value, Mapping):
                old = {"kind": old} if isinstance(old, str) else old or {}
                # Settings of one kind mean nothing to another.
                same = "kind" not in value or old.get("kind", value["kind"]) == value["kind"]
                if not same:
                    self._note_dropped(prefix + key, old, value)
                merged[key] = self._laid_over(old, value, f"{prefix}{key}.") if same else value
            else:
                self._note_dropped(prefix + key, old, value)
                merged[key] = value
        return merged

    def _with(
        self, values: Mapping[str, Any], path: Sequence[str], value: object, above: str = ""
    ) -> dict[str, Any]:
        """Return the values with one of them set."""
        head, *rest = path
        if not rest:
            self._note_dropped(above + head, values.get(head), value)
            return {**values, head: value}
        below = values.get(head, {})
        below = {"kind": below} if isinstance(below, str) else below
        if not isinstance(below, Mapping):
            name = above + head
            raise GermlineError(
                f"config: {name} is a single value ({below!r}), so {name}.{'.'.join(rest)} cannot "
                f"be set: set {name}, to another value or to a section such as {{{rest[0]}: ...}}"
            )
        return {**values, head: self._with(below, rest, value, f"{above}{head}.")}

    def _note_dropped(self, name: str, old: object, new: object) -> None:
        """Note which settings of a section are dropped because the whole section is replaced.

        Settings at their defaults are left out: the config of a run contains all of them.
        """
        if not isinstance(old, Mapping):
            return
        kinds = sections(group_at(name.split(".")))
        section = kinds.get(str(old.get("kind")))
        fields = section.model_fields if section is not None else {}
        kept = new if isinstance(new, Mapping) else {}
        dropped = [
            f"{name}.{key}={value}"
            for key, value in old.items()
            if key != "kind"
            and key not in kept
            and not (key in fields and value == fields[key].get_default(call_default_factory=True))
        ]
        if dropped:
            shown = new.get("kind") if isinstance(new, Mapping) else new
            verb = "is" if len(dropped) == 1 else "are"
            note = (
                f"{name}={shown} replaces the whole section, so {', '.join(dropped)} {verb} "
                f"dropped; set {name}.kind to keep settings that both kinds have, or give them "
                "again after it"
            )
            self.dropped.append((name, note))


def _is_file(override: str) -> bool:
    """Whether an override is a file of settings, and not a setting with a file as its value."""
    path = Path(override)
    return path.suffix in (".yaml", ".yml") and ("=" not in override or path.is_file())


def _number(text: str) -> object:
    """Read an unquoted text such as 1e-3 as the number that YAML 1.1 does not read it as."""
    try:
        return float(text)
    except ValueError:
        return text
