"""What every section of a config is made of: frozen, unknown keys refused, short names allowed."""

from collections.abc import Mapping

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Section(BaseModel):
    """Base of all sections: frozen, strict about names, finite about numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def named(default: str) -> BeforeValidator:
    """Let a section be its short name alone, or leave out `kind` where the default is meant."""

    def complete(value: object) -> object:
        if isinstance(value, str):
            return {"kind": value}
        return {"kind": default, **value} if isinstance(value, Mapping) else value

    return BeforeValidator(complete)


Many = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
"""Where several texts may stand, one may stand alone."""
