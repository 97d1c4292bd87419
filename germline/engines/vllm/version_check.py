"""Which vLLM can be used: told by its version, and by the parts of it that are used."""

from typing import Any

from germline.types import GermlineError

OLDEST = (0, 32)
"""The first vLLM this is made for, and the last it was tested with; newer ones may be used."""


def check_version(version: str) -> None:
    """Refuse a vLLM that is older than what this was made for.

    Raises:
        GermlineError: it is; builds of a working copy, which have no number, are taken.
    """
    numbers = tuple(int(one) for one in version.split(".")[:2] if one.isdigit())
    if len(numbers) == 2 and (0, 1) < numbers < OLDEST:
        raise GermlineError(
            f"vLLM {version} is too old for engine.kind=vllm: install {_dotted(OLDEST)} or newer "
            "(pip install 'germline[vllm]')"
        )


def import_part(owner: Any, name: str, version: str) -> Any:
    """Return a part of vLLM that is used here.

    Raises:
        GermlineError: this vLLM has no such part.
    """
    if not hasattr(owner, name):
        raise missing_part_error(f"{type(owner).__name__}.{name}", version)
    return getattr(owner, name)


def missing_part_error(name: str, version: str) -> GermlineError:
    """Say that a vLLM is made differently."""
    return GermlineError(
        f"vLLM {version} has no {name}, without which engine.kind=vllm cannot work: use vLLM "
        f"{_dotted(OLDEST)}, or a newer germline"
    )


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
