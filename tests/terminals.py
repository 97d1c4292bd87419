"""A terminal in the place of stdout, so wide, without colors."""

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import pytest


class Screen(io.StringIO):
    """What was printed on a terminal."""

    def isatty(self) -> bool:
        """Say that it is a terminal."""
        return True


@contextmanager
def terminal(width: int) -> Iterator[Screen]:
    """Let stdout be a terminal."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(Screen()) as screen:
        for name, value in {"COLUMNS": str(width), "LINES": "25", "TERM": "dumb"}.items():
            patch.setenv(name, value)
        yield screen
