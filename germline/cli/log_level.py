"""The option `--log-level`: which messages of germline go to stderr."""

import logging
from typing import Final

from germline.cli.word_wrap import print_stderr

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_VARIABLE: Final = "GERMLINE_LOG_LEVEL"
FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class StderrHandler(logging.Handler):
    """Writes to the present stderr, above a live view; lines are wrapped for a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message."""
        print_stderr(self.format(record))


def set_log_level(level: str) -> None:
    """Send germline's messages of this level and above to stderr.

    Below `warning`, the default, they have the time and the module.

    Raises:
        GermlineError: there is no such level.
    """
    if level.lower() not in LOG_LEVELS:
        from germline.types import GermlineError

        raise GermlineError(
            f"--log-level={level} ({LOG_VARIABLE}) is not one of {', '.join(LOG_LEVELS)}"
        )
    log = logging.getLogger("germline")
    log.setLevel(level.upper())
    log.handlers = [one for one in log.handlers if not isinstance(one, StderrHandler)]
    handler = StderrHandler()
    if level.lower() in ("debug", "info"):
        handler.setFormatter(logging.Formatter(FORMAT))
    log.addHandler(handler)
