"""What the page says about failures, and where the time went."""

import re
from dataclasses import replace

import pytest

from germline.config import load_config
from germline.record import RunDirectory
from germline.report.run_facts import PARTS
from tests.synthetic_runs import BATCH, DIGEST, record
from tests.test_report_page import page


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run", load_config({"generations": 10}), DIGEST, 1)


def test_no_two_parts_of_the_time_share_a_color(run):
    timing = {"evaluate_s": 3.0, "generate_s": 2.0, "tell_s": 0.1, "signals_s": 0.1}
    timing |= {"apply_s": 0.5, "digest_s": 0.2, "held_out_s": 0.5, "calibrate_s": 1, "ask_s": 0.1}
    run.write(replace(record(0), timing=timing), BATCH)
    html = page(run).html
    tones = re.findall(r'swatch (part-\d)"', html)
    assert len(tones) == len(set(tones)) == len(PARTS) == 9
    style = dict(re.findall(r"\.(part-\d) { --tone: (.*?); }", html))
    assert len({style[tone] for tone in tones}) == 9


def test_a_run_of_which_nothing_could_be_graded_is_not_painted_as_a_success(run):
    for generation in range(10):
        run.write(record(generation, failure="ValueError: boom"), BATCH)
    shown = page(run)
    assert (
        '<span class="state failed">in progress, but no completion could be graded</span>'
        in shown.html
    )
    assert "of 40; no rewards missing, 40 at the floor" in shown.text
    run.write(record(10), BATCH)
    assert '<span class="state running">in progress</span>' in page(run).html
