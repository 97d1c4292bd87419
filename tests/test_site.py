"""The documentation site: it builds without a warning, and its pages work without a network.

Building it takes half a minute; the quick tests of links are in `test_docs.py`.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

from tests.browser import REQUESTS, look

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


def missing(what) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"{what}; CI must have it, see .ci/run")
    pytest.skip(what)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if not find_spec("mkdocs"):
        missing("MkDocs is not installed (`make docs` installs it)")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_pages_are_quiet_and_no_wider_than_a_phone(site):
    # 404.html is shown by a server at any address, so its links begin at the root of the site.
    pages = sorted(path for path in site.rglob("*.html") if path.name != "404.html")
    opened = "document.querySelectorAll('details').forEach(one => one.open = true)"
    asked = f"[{opened}, document.documentElement.scrollWidth, {REQUESTS}]"
    found, complaints = look(pages, 375, asked)
    assert complaints == []
    for page, (_, width, requests) in zip(pages, found, strict=True):
        assert width == 375, page.name
        assert {one.partition(":")[0] for one in requests} <= {"file", "data", "blob"}


def test_the_search_works_without_a_server(site):
    typed = "box.focus(), box.value = 'sigma', box.dispatchEvent(new Event('keyup', {bubbles: 1}))"
    shown = "document.querySelectorAll('.md-search-result__item').length"
    search = f"""new Promise(done => {{
      const box = document.querySelector('.md-search__input');
      {typed};
      const wait = () => {shown} ? done({shown}) : setTimeout(wait, 50);
      wait();
    }})"""
    # Time leaps from poll to poll, while the search reads its index in a worker.
    (items,), complaints = look([site / "index.html"], 1440, search, waits_ms=10**7)
    assert items > 0
    assert complaints == []
