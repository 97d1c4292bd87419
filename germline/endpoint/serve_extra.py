"""The extra `serve`: the packages that an endpoint needs."""

from collections.abc import Iterator
from contextlib import contextmanager

from germline.types import GermlineError


@contextmanager
def serve_extra(needed_by: str) -> Iterator[None]:
    """Import the modules of an endpoint, or say what to install.

    Args:
        needed_by: the command or the setting.

    Raises:
        GermlineError: a package of the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "starlette", "uvicorn"):
            raise
        raise GermlineError(
            f"{needed_by} needs the package {error.name}, which is not installed: "
            "pip install 'germline[serve]'"
        ) from error
