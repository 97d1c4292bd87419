"""The format version of run directories: `run.json` names it, and only the present one is read."""

from collections.abc import Mapping
from pathlib import Path

from germline.types import GermlineError

FORMAT_VERSION = 2
"""Format of the whole run directory; raised if another germline could misread a folder.

A setting that did not exist when a run began gets its default when the run is opened. So a new
setting must have no effect by default, and does not change the format version.
"""


def check_format_version(file: Path, facts: object) -> None:
    """Check that this germline reads the run directory of a `run.json`.

    Raises:
        GermlineError: another version wrote it; the message names the version that can read it.
    """
    known = facts if isinstance(facts, Mapping) else {}
    version, versions = known.get("format_version"), known.get("versions")
    if version != FORMAT_VERSION:
        writer = versions.get("germline") if isinstance(versions, Mapping) else None
        remedy = f"open the run with germline {writer}, which wrote it"
        raise GermlineError(
            f"{file}: format_version is {version!r}, and this germline reads {FORMAT_VERSION}: "
            f"{remedy if writer else 'restore the file from a copy'}"
        )
