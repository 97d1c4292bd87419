"""An OpenAI-compatible endpoint over one engine, on FastAPI and uvicorn (the extra `serve`).

`http_app` is the same for every service, also for those that have no engine.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from germline.errors import GermlineError


@contextmanager
def serve_extra(needed_by: str) -> Iterator[None]:
    """Import the modules of an endpoint for a command or a setting, or say what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "starlette", "uvicorn"):
            raise
        raise GermlineError(
            f"{needed_by} needs the package {error.name}, which is not installed: "
            "pip install 'germline[serve]'"
        ) from error
