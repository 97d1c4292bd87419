"""The option `--log-level`: which messages of germline go to stderr."""

import logging
from typing import Final

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_VARIABLE: Final = "GERMLINE_LOG_LEVEL"
FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the present stderr, with time and module for the levels below `warning`."""


def set_log_level(level: str) -> None:
    """Send germline's messages of this level and above to stderr.

    At `warning`, the default, Python's own last resort prints messages without time and module.

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
    if level.lower() in ("debug", "info"):
        handler = StderrHandler()
        handler.setFormatter(logging.Formatter(FORMAT))
        log.addHandler(handler)
