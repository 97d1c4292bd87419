"""Reports in a real browser: nothing complains, is fetched, overflows or cannot be read."""

from dataclasses import replace

import pytest

from germline.config import load_config
from germline.record import RunDirectory
from germline.report.html_page import _environment, write_report
from germline.report.plots import svg
from germline.types import HeldOutScore
from tests.browser import REQUESTS, look
from tests.synthetic_runs import BATCH, DIGEST, record, rollout
from tests.test_findings import SOUND
from tests.test_report_page import HOSTILE

SIGNALS = replace(SOUND, empty=0.75)
LONG = "n" * 150

LOOK = """{
  opened: document.querySelectorAll('details').forEach(one => one.open = true),
  width: document.documentElement.scrollWidth,
  withoutWords: [...document.querySelectorAll('img, [role=img]')].filter(one =>
    one.getAttribute('aria-hidden') !== 'true' &&
    (one.getAttribute('aria-label') || one.alt || '').length < 20).length,
  sightlessFigures: [...document.querySelectorAll('figure')].filter(one =>
    [...one.querySelectorAll('[role=img]')].filter(
      image => window.getComputedStyle(image).display !== 'none').length !== 1).length,
  unreachable: [...document.querySelectorAll('*')].filter(one =>
    one.scrollWidth > one.clientWidth + 1 && ['auto', 'scroll'].includes(
      window.getComputedStyle(one).overflowX) && one.tabIndex < 0).length,
  heights: [...document.querySelectorAll('svg text')].map(
    one => one.getBoundingClientRect().height),
  requests: REQUESTS,
}"""


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
        return [
            write_report(runs[0]),
            write_report(runs, folder / "three.html"),
            write_report(begun.path),
        ]


@pytest.mark.parametrize(("width", "height"), [(375, 9), (1440, 12)])
def test_a_report_is_whole_quiet_and_readable(pages, width, height):
    found, complaints = look(pages, width, f"({LOOK.replace('REQUESTS', REQUESTS)})")
    assert complaints == []
    for page in found:
        assert min(page.pop("heights"), default=height + 1) > height
        assert page == {
            "width": width,
            "withoutWords": 0,
            "sightlessFigures": 0,
            "unreachable": 0,
            "requests": [],
        }
