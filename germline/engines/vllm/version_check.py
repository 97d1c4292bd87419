"""Which versions of vLLM are supported: by version number, and by the parts that are used."""

from typing import Any

from germline.types import GermlineError

OLDEST = (0, 32)
"""The oldest supported version and the newest tested one; newer versions are accepted."""


def check_version(version: str) -> None:
    """Refuse a version of vLLM that is too old; builds of a working copy have no number and pass.

    Raises:
        GermlineError: the version is too old.
    """
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if len(numbers) == 2 and (0, 1) < numbers < OLDEST:
        raise GermlineError(
            f"vLLM {version} is too old for engine.kind=vllm: install {_dotted(OLDEST)} or newer "
            "(pip install 'germline[vllm]')"
        )


def import_part(owner: Any, name: str, version: str) -> Any:
    """Return an attribute of an object of vLLM.

    Raises:
        GermlineError: this version of vLLM does not have it.
    """
    if not hasattr(owner, name):
        raise missing_part_error(f"{type(owner).__name__}.{name}", version)
    return getattr(owner, name)


def missing_part_error(name: str, version: str) -> GermlineError:
    """Return the error for a version of vLLM that lacks a part."""
    return GermlineError(
        f"vLLM {version} has no {name}, without which engine.kind=vllm cannot work: use vLLM "
        f"{_dotted(OLDEST)}, or a newer germline"
    )


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
