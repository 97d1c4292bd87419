"""Whole outputs of commands, kept in tests/snapshots/ with their volatile parts masked.

`REWRITE_SNAPSHOTS=1 python -m pytest tests/test_snapshots.py` writes them anew; read the diff.
"""

import os
import re
from pathlib import Path

FOLDER = Path(__file__).with_name("snapshots")

MASKS = (
    (r"\x1b\[[0-9;?]*[a-zA-Z]", ""),
    (r"\d+:\d\d(:\d\d)? (min|h)\b", "TIME"),
    (r"\d+:\d\d:\d\d\b", "TIME"),
    (r"[\d.,]+ (ns|µs|ms|s|min)\b", "TIME"),
    (r"[\d.,]+ tokens/s", "N tokens/s"),
    (r" *[\d.,]+ (bytes|kB|MB|GB|TB)\b", " SIZE"),
    (r"\d{4}-?\d\d-?\d\d[- T]\d\d:?\d\d:?\d*[^\s<]*", "DATE"),
    (r"\b[0-9a-f]{12,64}\b", "DIGEST"),
    (r"\b\d+\.\d+(\.\d+)+\S*", "VERSION"),
    (r" +(?=\n|\Z)", ""),
)


def masked(text: str, folder: Path | str = "") -> str:
    """Return an output without what differs between machines and runs."""
    if folder:
        text = text.replace(f"{folder}/", "").replace(str(folder), "FOLDER")
    for pattern, word in MASKS:
        text = re.sub(pattern, word, text)
    return text.strip("\n") + "\n"


def check_snapshot(name: str, text: str, folder: Path | str = "") -> None:
    """Compare an output with the snapshot of this name.

    Args:
        name: of the file.
        text: the output.
        folder: of the test, left out of paths.
    """
    path, found = FOLDER / f"{name}.txt", masked(text, folder)
    if os.environ.get("REWRITE_SNAPSHOTS"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")
