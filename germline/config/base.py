"""Base classes of config sections: frozen values, no unknown keys, kinds from the registry."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from germline import registry
from germline.errors import shown
from germline.types import GermlineError

AnyModel = TypeVar("AnyModel", bound=BaseModel)


class Section(BaseModel):
    """Base of all sections: unknown names and infinite numbers are errors, values are frozen."""

    # The schema is built on first use, when plugins have registered their kinds.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        defer_build=True,
        use_attribute_docstrings=True,  # A setting is described below it.
    )

    @model_validator(mode="before")
    @classmethod
    def _booleans_are_not_numbers(cls, values: object) -> object:
        """Refuse true and false where pydantic would read 1 or 0."""
        for name, value in values.items() if isinstance(values, Mapping) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field and "bool" not in str(field.annotation):
                raise ValueError(f"{name}={str(value).lower()}: must not be true or false")
        return values

    def changed(self, *names: str) -> list[str]:
        """Name the settings that are not at their default: of these names, or of all settings."""
        fields = type(self).model_fields
        return [
            name
            for name in names or fields
            if getattr(self, name) != fields[name].get_default(call_default_factory=True)
        ]


PLAIN = {
    "^Value error, |, unable to .*|, got a number with a fractional part": "",
    "Field required": "must be set",
    "Input should": "must",
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid string": "text",
    "a valid boolean": "true or false",
    "a valid (list|tuple)": "a list",
    "a valid dictionary( or .*)?": "a section, {SETTING: VALUE}",
}
"""Patterns of pydantic's messages, and what they mean to those who write a config."""


def message_of(mistake: Mapping[str, Any]) -> str:
    """Return what pydantic says of a mistake, in the words of a config."""
    said = str(mistake["msg"])
    for pattern, plain in PLAIN.items():
        said = re.sub(pattern, plain, said)
    return said


def found_of(mistake: Mapping[str, Any], words: Iterable[str]) -> str:
    """Return the wrong value of a mistake, and which of the words it may mean.

    The message of a check over several settings names them and their values.
    """
    given = mistake["input"]
    meant = registry.did_you_mean(given, words) if isinstance(given, str) else ""
    return meant if isinstance(given, Mapping) else f"{meant} (found {shown(given)})"


def expected_words(mistake: Mapping[str, Any]) -> list[str]:
    """Return the words that pydantic says are accepted."""
    return re.findall(r"'([^']*)'", str(mistake.get("ctx", {}).get("expected", "")))


def make_section(
    section: type[AnyModel], values: Mapping[str, Any], command: str, prefix: str
) -> AnyModel:
    """Return a section that is no part of a config.

    Args:
        section: its class.
        values: setting -> value.
        command: begins the error.
        prefix: of its settings on the command line.

    Raises:
        GermlineError: a setting is unknown or out of range; the first mistake is named.
    """
    try:
        return section(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = message_of(first) + found_of(first, expected_words(first))
        place = ".".join(one for one in first["loc"] if isinstance(one, str))
        if first["type"] == "extra_forbidden":
            known: Mapping[Any, Any] = section.model_fields
            *outer, last = first["loc"]
            for name in outer:
                known = getattr(getattr(known.get(name), "annotation", None), "model_fields", {})
            why = f"unknown setting{registry.did_you_mean(str(last), known)}"
            why += f"; known here: {', '.join(known)}" if known else ""
        setting = f"{prefix}{place}: " if place else ""
        raise GermlineError(f"{command}{setting}{why}") from None


def in_order(*names: str, strictly: bool = False) -> Any:
    """Return a validator of a section: no setting is less than the one before it; null is none."""

    def check(section: Section) -> Section:
        values = [(name, getattr(section, name)) for name in names]
        given = [(name, value) for name, value in values if value is not None]
        for (low, below), (high, above) in pairwise(given):
            if below > above or (strictly and below == above):
                needed = "above" if strictly else "at least"
                raise ValueError(f"{high}={above:g} must be {needed} {low}={below:g}")
        return section

    return model_validator(mode="after")(check)


def as_override(setting: str, value: object) -> str:
    """Spell a setting and its JSON value as an override."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{setting}={text}"


class KindSection(Section):
    """Base of the sections that have kinds; every kind has a short name, `kind`."""

    if TYPE_CHECKING:  # each kind declares it, as a literal
        kind: str


@dataclass(frozen=True)
class KindOf:
    """Annotation of a setting that accepts the registered kinds of a group.

    Such a setting may be a short name alone, or leave out `kind` where the default is meant.
    """

    group: str
    default: str

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the schema of the union of all kinds, including those of plugins."""
        schema = handler.generate_schema(self.union())
        return core_schema.no_info_before_validator_function(self.complete, schema)

    def types(self) -> list[Any]:
        """Return the types that the setting accepts: the sections of all kinds."""
        return [*registry.sections(self.group).values()]

    def union(self) -> Any:
        """Return the type of all kinds."""
        return Annotated[Union[tuple(self.types())], Field(discriminator="kind")]  # noqa: UP007 - of a tuple

    def complete(self, value: object) -> object:
        """Turn a short name into a section, and add a missing kind."""
        if isinstance(value, str):
            return {"kind": value}
        return {"kind": self.default, **value} if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class NumberOrKindOf(KindOf):
    """Annotation of a setting that is a number above 0, or a schedule from the registry.

    A schedule without `kind` is linear where it has a start or an end, else of the default kind.
    """

    def types(self) -> list[Any]:
        """Return the types that the setting accepts: a number and the sections of all schedules."""
        return [Annotated[float, Field(gt=0)], *super().types()]

    def union(self) -> Any:
        """Return the type of a number and all schedules."""
        number, *sections = self.types()
        kinds = [Annotated[one, Tag(one.model_fields["kind"].default)] for one in sections]
        return Annotated[
            Union[(Annotated[number, Tag("number")], *kinds)], Discriminator(self._tag)
        ]

    def complete(self, value: object) -> object:
        """Turn the short name of a schedule into a section; validation rejects other texts."""
        is_kind = isinstance(value, str) and value in registry.sections("sigma")
        return {"kind": value} if is_kind else value

    def _tag(self, value: object) -> str:
        if isinstance(value, Section):
            return str(getattr(value, "kind", ""))
        if not isinstance(value, Mapping):
            return "number"
        open_kind = "linear" if {"start", "end"} & {*value} else self.default
        return str(value.get("kind", open_kind))


def text_with(*places: str, names: Collection[str] = ()) -> AfterValidator:
    """Return the annotation of a text that has these `{places}`, or is one of these names."""

    def check(text: str) -> str:
        missing = [f"{{{place}}}" for place in places if f"{{{place}}}" not in text]
        if missing and text not in names:
            others = f", or use one of {', '.join(names)}" if names else ""
            raise ValueError(f"{text[:80]!r} has no {' and no '.join(missing)}: write it{others}")
        return text

    return AfterValidator(check)


TextOrPath = Annotated[
    str, BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value)
]
"""A text that may name a folder, and be given as a `pathlib.Path`."""

Many = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
"""Annotation of a list of texts that may be given as one text."""

Listed = BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value)
"""Annotation of a list that may be given as one text, with commas between its items."""
