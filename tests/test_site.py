"""The documentation site: it builds without a warning, and its pages work without a network.

Building it takes half a minute; the quick tests of links are in `test_docs.py`.
"""

import os
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

from tests import browser

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.loads = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        loaded = values.get("src") or (tag == "link" and values.get("href"))
        if loaded:
            self.loads.add(loaded)


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


@pytest.fixture(scope="module")
def pages(site):
    # 404.html is shown by a server at any address, so its links begin at the root of the site.
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


@pytest.fixture(scope="module")
def chromium():
    program = browser.find()
    if program is None:
        missing("no Chromium on this machine (Debian: apt-get install chromium; or $CHROMIUM)")
    with browser.Browser(program) as opened:
        yield opened


def test_pages_are_quiet_and_no_wider_than_a_phone(chromium, pages):
    width = 375
    for path in sorted(pages):
        chromium.open(path, width)
        chromium.ask("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert chromium.ask("document.documentElement.scrollWidth") == width, path.name
        assert chromium.complaints() == [], path.name
        assert {one.partition(":")[0] for one in chromium.requests()} <= {"file", "data", "blob"}


def test_the_search_works_without_a_server(chromium, site):
    chromium.open(site / "index.html", 1440)
    shown = "document.querySelectorAll('.md-search-result__item').length"
    chromium.ask(
        "(() => { const box = document.querySelector('.md-search__input'); box.focus();"
        " box.value = 'sigma'; box.dispatchEvent(new Event('keyup', {bubbles: true})); })()"
    )
    chromium.wait_for(f"{shown} > 0")
    assert chromium.complaints() == []
