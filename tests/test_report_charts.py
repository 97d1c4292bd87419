"""Charts, the figure, word differences and wording: the small parts a report is made of."""

import math
import re
from xml.etree import ElementTree

import pytest

from germline.config import load_config
from germline.record import RunDirectory
from germline.report import comparison, text_format
from germline.report.charts import COLORS, Chart, Series
from germline.report.plots import draw_evolution, evolution_charts, svg
from tests.synthetic_runs import BATCH, DIGEST, record, score


def chart(*series):
    return Chart("title", "caption", "generation", series)


X = (0.0, 1.0, 2.0, 3.0)
SERIES = (
    Series("curve", X, [3.0, None, -1e6, 2.0], [2.0, None, -2e6, 1.0], [4.0, None, 0.0, 3.0]),
    Series("thin", X, [0.0, 0.0, 0.0, 0.0], color=1, style="thin"),
    Series("edge", [0.0, 3.0], [1.0, 1.0], color=2, style="dashed"),
    Series(
        "points", X, [1.0] * 4, [0.5, math.nan, 0.5, 0.5], [1.5, math.nan, 1.5, 1.5], 3, "points"
    ),
    Series("one", [1.0], [1e-9], color=9),
)


def test_a_drawing_is_svg_with_readable_text_and_the_same_bytes_each_time():
    drawn = svg(chart(*SERIES))
    assert drawn == svg(chart(*SERIES))
    root = ElementTree.fromstring(drawn)
    texts = [one for one in root.iter() if one.tag.endswith("text")]
    assert "generation" in [one.text for one in texts]
    assert all(color in drawn for color in COLORS[:4])
    assert all("11px" in one.get("style", "") for one in texts)
    assert not re.search("href=.http", drawn)


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run", load_config({}), DIGEST, threads=1)


def test_the_figure_shows_fitness_with_gaps_and_scores_with_95_percent_intervals(run):
    for generation, rewards in enumerate(([1.0, 0.0], [math.nan, math.nan], [3.0, 1.0])):
        run.write(record(generation, [[one, one] for one in rewards]), BATCH)
    for generation, mean in ((0, 0.25), (1, 0.75), (3, 0.5)):
        run.write_held_out(score(generation, mean), [], BATCH)
    fitness, held_out = evolution_charts(run)
    curve, best = fitness.series
    assert (list(curve.y), list(best.y)) == ([0.5, None, 2.0], [1.0, None, 3.0])
    assert [curve.low[2], curve.high[2]] == pytest.approx([1.4, 2.6])
    center, marked = held_out.series
    assert held_out.title == "held-out exact"
    assert list(center.y) == [0.25, 0.75, 0.5]
    half = 1.96 * 0.05
    assert [center.low[2], center.high[2]] == pytest.approx([0.5 - half, 0.5 + half])
    assert marked.label == "best: 0.75 after 1"
    assert draw_evolution(run) == run.path / "evolution.png"
    assert run.figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("generations", [0, 1])
def test_a_run_that_has_hardly_begun_can_be_drawn(run, generations):
    for generation in range(generations):
        run.write(record(generation), BATCH)
    draw_evolution(run)


def test_settings_that_one_run_does_not_have_are_differences():
    configs = [load_config({"space": "low_rank"}), load_config({"space": "full"})]
    found = comparison.differing_settings(configs)
    assert found["space.kind"] == ["low_rank", "full"]
    assert found["space.rank"] == [1, ...]
    assert "seed" not in found


@pytest.mark.parametrize(
    ("write", "value", "expected"),
    [
        (text_format.seconds, 3e-6, "0.003 ms"),
        (text_format.seconds, 0.0125, "12.5 ms"),
        (text_format.seconds, 0.9994, "999 ms"),
        (text_format.seconds, 100.0, "1:40 min"),
        (text_format.seconds, 4e3, "1:06:40 h"),
        (text_format.seconds, 3e5, "3.47 days"),
        (text_format.number, 999.6, "1,000"),
        (text_format.number, -0.0, "0"),
        (text_format.number, 1e300, "1e+300"),
        (text_format.percent, 0.999, "> 99 %"),
        (text_format.percent, 1.0, "100 %"),
        (text_format.number, -999.6, "-1,000"),
        (text_format.number, 0.00012345, "0.000123"),
        (text_format.number, math.nan, "-"),
        (text_format.signed, 123456.0, "+123,456"),
        (text_format.size, 856e6, "856.0 MB"),
        (text_format.percent, 0.0042, "0.42 %"),
    ],
)
def test_values_have_a_readable_unit_and_three_digits(write, value, expected):
    assert write(value) == expected


def test_what_a_terminal_or_browser_might_obey_is_replaced_and_languages_are_kept():
    assert text_format.escape_control_characters("\x1b[31m\u202e\x00") == "�[31m��"
    assert text_format.escape_control_characters("a\tb\nc\u00a0d\u3000e") == "a\tb\nc d\u3000e"
    assert (
        text_format.escape_control_characters("می\u200cخواهم 👩\u200d👧")
        == "می\u200cخواهم 👩\u200d👧"
    )
