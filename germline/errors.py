"""The errors that germline raises where a user or a fleet can do something about it."""


class GermlineError(Exception):
    """An error that a user can correct: its message names the setting, its value and a remedy."""


class EngineLost(GermlineError):
    """The server of an engine is lost; a fleet recovers from it as from a killed process."""
