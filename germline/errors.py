"""The errors that germline raises where a user or a fleet can act, and the numbers in messages."""


class GermlineError(Exception):
    """An error that a user can correct: its message names the setting, its value and a remedy."""


class EngineLost(GermlineError):
    """The server of an engine is lost; a fleet recovers from it as from a killed process."""


def shown(value: object) -> str:
    """Return a wrong value as a message shows it."""
    return repr(value)[:200]


def count_of(count: int, nouns: str) -> str:
    """Return a number and its noun, which is given in the plural: `1 example`, `2 examples`."""
    return f"{count:,} {nouns.removesuffix('s') if count == 1 else nouns}"
