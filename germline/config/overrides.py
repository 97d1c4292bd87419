"""Overrides of settings: `strategy.sigma=0.002`, and YAML files laid over the settings before them.

A section of another kind replaces the whole section; `strategy.kind=cma` keeps the settings that
both kinds have. The settings that this drops are noted.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from germline.config.base import Section
from germline.config.config_files import DuplicateKeyError, lines_of, read_file
from germline.config.fields import read_argument
from germline.config.file_paths import resolve_file_paths
from germline.config.reference import group_at
from germline.registry import sections
from germline.types import GermlineError


class OverriddenSettings:
    """Settings on which overrides are laid, in order.

    Attributes:
        values: the settings.
        dropped: for each section that was replaced, a sentence about the settings it had.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        self.dropped: list[str] = []

    def apply(self, override: str) -> None:
        """Apply `setting=value` or the name of a YAML file.

        Raises:
            GermlineError: it is neither, the file cannot be read, or the setting has no settings.
        """
        if is_file(override):
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
            value = read_argument(path, text) if text else ""
        except DuplicateKeyError as error:
            raise GermlineError(f"config: override {override!r}: {error.problem}") from None
        self.values = self._with(self.values, path, value)

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
            if head == "kind" and above:
                values = self._of_kind(above.removesuffix("."), values, value)
            else:
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

    def _of_kind(self, name: str, old: Mapping[str, Any], kind: object) -> Mapping[str, Any]:
        """Return the settings of a section that another kind has as well."""
        section = sections(group_at(name.split("."))).get(str(kind))
        if section is None:
            return old
        kept = {key: value for key, value in old.items() if key in section.model_fields}
        self._note_dropped(name, old, {**kept, "kind": kind})
        return kept

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
            and not (
                key in fields
                and value == _plain(fields[key].get_default(call_default_factory=True))
            )
        ]
        if dropped:
            shown = new.get("kind") if isinstance(new, Mapping) else new
            self.dropped.append(
                f"{name}={shown} has another kind, which drops {', '.join(dropped)}"
            )


def _plain(default: object) -> object:
    """Return a default as the values of a run have it: a section as a mapping."""
    return default.model_dump() if isinstance(default, Section) else default


def is_file(override: str) -> bool:
    """Whether an override is a file of settings, and not a setting with a file as its value."""
    path = Path(override)
    return path.suffix in (".yaml", ".yml") and ("=" not in override or path.is_file())


def place_in_files(setting: str, layers: Sequence[str]) -> str:
    """Return `FILE:LINE: ` of a setting, or an empty text where no file gave it.

    Args:
        setting: its name.
        layers: files and overrides; the last one that gives the setting or a section of it counts.
    """
    for layer in reversed(layers):
        if is_file(layer):
            lines = lines_of(Path(layer))
            parts = setting.split(".")
            names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
            if line := next((lines[name] for name in names if name in lines), None):
                return f"{layer}:{line}: "
        elif f"{setting}.".startswith(given := f"{layer.partition('=')[0]}.") or given.startswith(
            f"{setting}."
        ):
            return ""
    return ""
