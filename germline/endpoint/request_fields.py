"""Types of fields of requests."""

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError


def _unicode(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise PydanticCustomError("unicode", "use Unicode text, without half a character")
    return text


def as_one_of(expected: str) -> WrapValidator:
    """Return a validator with one message for all alternatives of a type."""

    def validate(value: object, handler: Callable[[object], object]) -> object:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError(
                "alternatives", "use {expected}", {"expected": expected}
            ) from None

    return WrapValidator(validate)


Text = Annotated[str, AfterValidator(_unicode)]
StopText = Annotated[Text, Field(min_length=1)]
