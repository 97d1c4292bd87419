"""What every section of a config is made of: frozen, unknown keys refused, short names allowed."""

from collections.abc import Mapping

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator


class Section(BaseModel):
    """Base of all sections: frozen, strict about names, finite about numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _yes_is_no_number(cls, values: object) -> object:
        """Refuse what YAML makes of yes, no, on and off where pydantic would read 1 or 0."""
        for name, value in values.items() if isinstance(values, Mapping) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field and "bool" not in str(field.annotation):
                raise ValueError(
                    f"{name}={str(value).lower()} is no value of {name}, which is never yes or "
                    f"no: {field.description}"
                )
        return values

    def changed(self, *names: str) -> list[str]:
        """Name the settings that are not at their default: of these, or of all."""
        fields = type(self).model_fields
        return [
            name
            for name in names or fields
            if getattr(self, name) != fields[name].get_default(call_default_factory=True)
        ]


def allow_short_name(default: str) -> BeforeValidator:
    """Let a section be its short name alone, or leave out `kind` where the default is meant."""

    def complete(value: object) -> object:
        if isinstance(value, str):
            return {"kind": value}
        return {"kind": default, **value} if isinstance(value, Mapping) else value

    return BeforeValidator(complete)


Many = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
"""Where several texts may stand, one may stand alone."""
