"""A headless Chromium that shows pages in frames so wide, and says what a script finds there."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.hang_limit import HANG_S

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # CI runs as root, where the sandbox refuses to start
    "--disable-dev-shm-usage",  # containers have little shared memory
    "--disable-gpu",
    "--hide-scrollbars",
    "--allow-file-access-from-files",  # the script is outside of the frames
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
    "--dump-dom",
)
OUTSIDE = """<!doctype html><meta charset="utf-8"><pre></pre>
<script>
const look = async (document, window) => SCRIPT;
const shown = page => new Promise(done => {
  const frame = document.createElement('iframe');
  frame.style = 'width: WIDTHpx; height: 900px; border: 0';
  frame.onload = async () => done(await look(frame.contentDocument, frame.contentWindow));
  frame.src = page;
  document.body.append(frame);
});
Promise.all(PAGES.map(shown)).then(
  found => document.querySelector('pre').textContent = JSON.stringify(found));
</script>
"""
REQUESTS = "window.performance.getEntriesByType('resource').map(one => one.name)"
"""The addresses that a page has asked for, itself left out."""


def look(
    pages: Sequence[Path], width: int, script: str, waits_ms: int = 60_000
) -> tuple[list[Any], list[str]]:
    """Return what an expression is on each page, and what the pages say to the console."""
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        missing = "no Chromium on this machine (Debian: apt-get install chromium; or $CHROMIUM)"
        if os.environ.get("CI"):
            pytest.fail(f"{missing}; CI must have one, see .ci/run")
        pytest.skip(missing)
    addresses = json.dumps([page.resolve().as_uri() for page in pages])
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = Path(folder, "outside.html")
        text = OUTSIDE.replace("WIDTH", str(width)).replace("PAGES", addresses)
        file.write_text(text.replace("SCRIPT", script), encoding="utf-8")
        done = subprocess.run(
            [
                program,
                *FLAGS,
                f"--virtual-time-budget={waits_ms}",
                f"--user-data-dir={folder}/profile",
                file.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=True,
        )
    (found,) = re.findall(r"<pre>(.+?)</pre>", done.stdout, re.DOTALL)
    return json.loads(unescape(found)), re.findall(r"CONSOLE.*", done.stderr)
