"""Settings as a person reads them: those that are null or empty by default are left out."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def without_unset(section: BaseModel) -> dict[str, Any]:
    """Return the settings of a section as JSON values, without those that have no value.

    A setting is left out if its default is null or empty and it was not changed, so the result is
    the same config.
    """
    dumped = section.model_dump(mode="json")
    return {
        name: _without_unset(getattr(section, name), dumped[name])
        for name, field in type(section).model_fields.items()
        if dumped[name] not in (None, [], {})
        or getattr(section, name) != field.get_default(call_default_factory=True)
    }


def _without_unset(value: object, dumped: object) -> object:
    if isinstance(value, BaseModel):
        return without_unset(value)
    if isinstance(value, Mapping) and isinstance(dumped, Mapping):
        return {name: _without_unset(value[name], dumped[name]) for name in dumped}
    return dumped
