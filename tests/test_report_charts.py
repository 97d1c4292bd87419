"""Charts, word differences and wording: the small parts a report is made of."""

import math
import re

import pytest

from germline.config import load_config
from germline.record import RunDirectory
from germline.report import diff, html_page, text_format
from germline.report.diff import DiffPiece
from germline.report.run_facts import RunFacts
from germline.report.suggested_commands import suggested_commands
from germline.report.svg_charts import (
    MOST_POINTS,
    Band,
    Chart,
    Curve,
    Points,
    draw_chart,
    thin_out,
    ticks,
)
from tests.synthetic_runs import DIGEST


def drawing(*marks, width=880.0, height=300.0):
    return draw_chart(Chart("name", "caption", "alt", "x", "y", marks), width, height)


def numbers(path):
    return [float(one) for one in re.findall(r"-?\d+(?:\.\d+)?", path)]


# --- charts


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 10.0, [0, 2, 4, 6, 8, 10]),
        (-20.7, -3.2, [-20, -15, -10, -5]),
        (0.28, 0.96, [0.4, 0.6, 0.8]),
        (1e-7, 5e-7, [1e-7, 2e-7, 3e-7, 4e-7, 5e-7]),
    ],
)
def test_ticks_are_round_numbers_inside_the_range(low, high, expected):
    assert ticks(low, high, 5) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.0, 0.0], ["−1.0", "−0.5", "0.0", "0.5", "1.0"]),
        ([0.5, 0.5 + 1e-16], ["0.460", "0.480", "0.500", "0.520", "0.540"]),
        ([-200.0, -200.0], ["−220", "−210", "−200", "−190", "−180"]),
    ],
)
def test_constant_values_have_an_axis_of_their_size(values, labels):
    shown = drawing(Curve("c", "mean", [0.0, 1.0], values))
    assert [label for _, label in shown.y_ticks] == labels


def test_generations_have_whole_ticks():
    assert ticks(0.0, 3.0, 11, whole=True) == [0, 1, 2, 3]
    assert ticks(0.0, 12.0, 5, whole=True) == [0, 3, 6, 9, 12]


@pytest.mark.parametrize("width", [880.0, 360.0])
@pytest.mark.parametrize("values", [[3.0, -1e6], [0.5, 0.5], [1e-9, 2e-9], [0.0]])
def test_everything_drawn_stays_inside_the_picture(width, values):
    x = [float(place) for place in range(len(values))]
    low, high = [value - abs(value) for value in values], [2 * abs(value) for value in values]
    shown = drawing(
        Curve("c", "mean", x, values), Points("p", "held", x, values, low, high), width=width
    )
    for shape in shown.shapes:
        for at, up in shape.dots:
            assert shown.left <= at <= shown.right
            assert shown.top <= up <= shown.bottom
    assert all(shown.left <= at <= shown.right for at, _ in shown.x_ticks)
    assert all(shown.top <= at <= shown.bottom for at, _ in shown.y_ticks)


def test_higher_values_are_drawn_higher():
    [curve] = drawing(Curve("c", "mean", [0.0, 1.0], [1.0, 2.0])).shapes
    [_, low, _, high] = numbers(curve.path)
    assert high < low


def test_a_missing_value_lifts_the_pen():
    x = [0.0, 1.0, 2.0, 3.0, 4.0]
    gap = [1.0, 2.0, None, 3.0, 4.0]
    curve, band = drawing(Curve("c", "mean", x, gap), Band("b", "mean", x, gap, gap)).shapes
    assert curve.path.count("M") == 2
    assert band.path.count("Z") == 2


def test_a_single_generation_is_a_dot():
    [curve] = drawing(Curve("c", "mean", [0.0], [1.0])).shapes
    assert len(curve.dots) == 1


def test_whiskers_span_the_interval():
    marks = Points("p", "held", [0.0, 1.0], [1.0, 2.0], [0.5, math.nan], [1.25, math.nan])
    [points] = drawing(marks).shapes
    [first, second] = points.dots
    heights = sorted({one for _, one in re.findall(r"M([\d.]+),([\d.]+)h", points.whiskers)})
    assert float(heights[0]) < first[1] or float(heights[1]) > first[1]
    assert f"M{second[0]},{second[1]}V{second[1]}" in points.whiskers


def test_long_series_are_averaged_in_groups_and_short_ones_are_not():
    assert thin_out([1.0, None]) == [1.0, None]
    assert thin_out([1.0, 3.0] * MOST_POINTS) == [2.0] * MOST_POINTS
    assert thin_out([1.0, None] * MOST_POINTS) == [1.0] * MOST_POINTS
    assert thin_out([None, None] * MOST_POINTS) == [None] * MOST_POINTS


# --- differences


def test_words_that_only_one_text_has_are_changed():
    before, after = diff.diff_words("let me see. it is 8", "it is 9")
    assert before == [
        DiffPiece("let me see. ", True),
        DiffPiece("it is ", False),
        DiffPiece("8", True),
    ]
    assert after == [DiffPiece("it is ", False), DiffPiece("9", True)]


def test_a_space_between_two_changes_changes_with_them():
    before, _ = diff.diff_words("one two", "three four")
    assert before == [DiffPiece("one two", True)]


@pytest.mark.parametrize("texts", [("", ""), ("a", ""), ("\n\n", " "), ("日本 語", "日本")])
def test_pieces_join_to_the_text_they_were_cut_from(texts):
    for text, pieces in zip(texts, diff.diff_words(*texts), strict=True):
        assert "".join(piece.text for piece in pieces) == text


def test_settings_that_one_run_does_not_have_are_differences():
    configs = [load_config({"space": "low_rank"}), load_config({"space": "full"})]
    found = diff.differing_settings(configs)
    assert found["space.kind"] == ["low_rank", "full"]
    assert found["space.rank"] == [1, ...]
    assert "seed" not in found


def test_settings_that_are_unset_in_one_run_and_missing_in_the_other_are_not_compared(tmp_path):
    low_rank, lora = (
        RunFacts(RunDirectory.create(tmp_path / space, config, DIGEST, 1).path)
        for space, config in ((one, load_config({"space": one})) for one in ("low_rank", "lora"))
    )
    shown = html_page._between([low_rank, lora], []).rows
    assert shown["space.alpha"] == ["–", "2.0"]
    assert "space.init_adapter" not in shown


def test_an_adapter_is_said_to_be_exported_for_peft(tmp_path):
    for space, library in (("low_rank", "transformers"), ("lora", "peft")):
        config = load_config({"space": space})
        run = RunFacts(RunDirectory.create(tmp_path / space, config, DIGEST, 1).path)
        purposes = [command.purpose for command in suggested_commands(run)]
        assert f"Export the weights for plain {library}" in purposes


# --- wording


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3e-6, "3 µs"),
        (0.0125, "12.5 ms"),
        (1.134, "1.13 s"),
        (100.0, "1:40 min"),
        (4e3, "1:06:40 h"),
    ],
)
def test_times_have_a_readable_unit(value, expected):
    assert text_format.seconds(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(12.0, "12 bytes"), (6424.0, "6.42 kB"), (856e6, "856 MB"), (24e9, "24 GB")],
)
def test_sizes_have_a_readable_unit(value, expected):
    assert text_format.size(value) == expected


def test_what_a_terminal_or_browser_might_obey_is_replaced_and_languages_are_kept():
    assert text_format.escape_control_characters("\x1b[31m\u202e\x00") == "�[31m��"
    assert text_format.escape_control_characters("a\tb\nc\u00a0d\u3000e") == "a\tb\nc d\u3000e"
    assert (
        text_format.escape_control_characters("می\u200cخواهم 👩\u200d👧")
        == "می\u200cخواهم 👩\u200d👧"
    )
