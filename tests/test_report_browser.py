"""Reports in a real browser: nothing complains, is fetched, overflows or cannot be read."""

import os
from dataclasses import replace

import pytest

from germline.config import load_config
from germline.record import RunDirectory
from germline.report.html_page import _environment, write_report
from germline.report.plots import svg
from germline.types import HeldOutScore
from tests import browser
from tests.synthetic_runs import BATCH, DIGEST, record, rollout
from tests.test_findings import SOUND
from tests.test_report_page import HOSTILE

SIGNALS = replace(SOUND, empty=0.75)
WIDTHS = (375, 1440)
LONG = "n" * 150

OPEN_EVERYTHING = "document.querySelectorAll('details').forEach(one => one.open = true)"
WITHOUT_WORDS = """
[...document.querySelectorAll('img, [role=img]')].filter(one =>
  one.getAttribute('aria-hidden') !== 'true' &&
  (one.getAttribute('aria-label') || one.alt || '').length < 20).length
"""
SIGHTLESS_FIGURES = """
[...document.querySelectorAll('figure')].filter(one =>
  [...one.querySelectorAll('[role=img]')].filter(
    image => getComputedStyle(image).display !== 'none').length !== 1).length
"""
UNREACHABLE = """
[...document.querySelectorAll('*')].filter(one =>
  one.scrollWidth > one.clientWidth + 1 && ['auto', 'scroll'].includes(
    getComputedStyle(one).overflowX) && one.tabIndex < 0).length
"""
TEXT_HEIGHTS = (
    "[...document.querySelectorAll('svg text')].map(one => one.getBoundingClientRect().height)"
)


@pytest.fixture(scope="module")
def chromium():
    program = browser.find()
    if program is None:
        missing = "no Chromium on this machine (Debian: apt-get install chromium; or $CHROMIUM)"
        if os.environ.get("CI"):
            pytest.fail(f"{missing}; CI must have one, see .ci/run")
        pytest.skip(missing)
    with browser.Browser(program) as opened:
        yield opened


def written(folder, **settings):
    """Make up a run with failures, long words and hostile answers."""
    config = load_config({"task": {"stop": [LONG]}, "generations": 4, **settings})
    run = RunDirectory.create(folder, config, DIGEST, threads=1)
    texts = [*HOSTILE, LONG * 10, "", "The answer is 8."]
    rollouts, examples = [], []
    for index, text in enumerate(texts):
        one = rollout(0, index, 0.5)
        rollouts.append(replace(one, completion=replace(one.completion, text=text)))
        examples.append(replace(BATCH[0], index=index, prompt=f"{index} {text}", answer=text))
    for updates in (0, 4):
        run.write_held_out(HeldOutScore(updates, "exact", 0.25, 0.05, 8, 0.25), rollouts, examples)
        rollouts.reverse()
        rollouts = [replace(one, example=place) for place, one in enumerate(rollouts)]
    for generation in range(4):
        made = replace(record(generation, failure=f"timeout {LONG}"), signals=SIGNALS)
        run.write(made, BATCH, {"host": 856.0})
    return run.path


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    runs = [
        written(folder / "one"),
        written(folder / LONG, strategy={"sigma": 0.25}),
        written(folder / "other-task", task="arithmetic"),
    ]
    begun = RunDirectory.create(folder / "begun", load_config({}), DIGEST, threads=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_environment().filters, "svg", svg)
        return {
            "one": write_report(runs[0]),
            "three": write_report(runs, folder / "three.html"),
            "begun": write_report(begun.path),
        }


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["one", "three", "begun"])
def test_a_report_is_whole_quiet_and_readable(chromium, pages, name, width):
    page = pages[name]
    chromium.open(page, width)
    chromium.ask(OPEN_EVERYTHING)
    assert chromium.ask("document.documentElement.scrollWidth") == width
    assert chromium.ask(WITHOUT_WORDS) == 0
    assert chromium.ask(SIGHTLESS_FIGURES) == 0
    assert chromium.ask(UNREACHABLE) == 0
    assert chromium.complaints() == []
    assert chromium.requests() == [page.as_uri()]
    heights = chromium.ask(TEXT_HEIGHTS)
    assert not heights or min(heights) > (9 if width == 375 else 12)
