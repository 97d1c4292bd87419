"""What the graders say about a completion; how they survive it is in test_grader_pool."""

import re
import signal
from contextlib import contextmanager

import pytest

from germline.graders import countdown
from germline.graders.builtin_rewards import grade_exact, grade_length
from germline.types import Example

PUZZLE = Example(
    index=0,
    prompt="for example <answer> (1 + 2) / 3 </answer>.Let me solve this step by step.\n<think>",
    answer=" </think>\n<answer> (3 * 5) - 2 </answer>",
    chat=False,
    facts={"numbers": (3, 5, 2), "target": "13"},
)


def puzzle(target, *numbers):
    return Example(0, "", "", False, facts={"numbers": numbers, "target": target})


def answer(expression, example=PUZZLE):
    return countdown.grade_countdown(f" hm </think>\n<answer>{expression}</answer>", example)[
        "answer"
    ]


def form(text):
    return countdown.grade_countdown(text, PUZZLE)["format"]


def test_the_exact_format_earns_one():
    assert form(" some thought </think>\n<answer> 8 </answer>") == 1.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0.0),
        (" thought </think>", 0.1),
        (" <answer> 8 </answer>", 0.5),
        (" thought </think> <answer> 8 </answer>", 0.6),
        (" thought </think>\n<answer> 8 </answer> and more", 0.6),
        (
            " thought </think>\n<answer> 8 </answer>\n",
            1.0,
        ),  # as the `$` of the field's pattern does
        (" thought </think>\n<answer> 8 </answer>\n\n", 0.6),
        ("</think>\n<answer>", 0.1),
        ("</answer><answer>", 0.0),
    ],
)
def test_parts_of_the_format_earn_a_tenth_and_a_half(text, value):
    assert form(text) == value


@pytest.mark.parametrize(
    "expression",
    [
        "3 * 5 - 2",
        " ((3 * 5) - 2) ",
        "-2 + 5 * 3",
        "5*3+-2",
        "+3 * +5 - 2",
        "--3 * 5 - 2",
        "(3) * (5) - (2)",
    ],
)
def test_a_right_expression_in_any_dress_earns_the_answer(expression):
    assert answer(expression) == 1.0


@pytest.mark.parametrize(
    "expression",
    [
        "",
        " ",
        "13",
        "3 * 5",
        "3 * 5 - 2 = 13",
        "3 * 5 - 1 - 1",
        "3 * 5 - 2 + 2 - 2",
        "3 * 5 - 2)",
        "(3 * 5 - 2",
        "3 5 * 2 -",
        "(3)(5) - 2",
        "3 * 5 - 2 / (3 - 3)",
        "3 * 5 -",
        "03 * 5 - 2",
        "3.0 * 5 - 2",
        "x",
    ],
)
def test_a_wrong_or_broken_expression_earns_nothing(expression):
    assert answer(expression) == 0.0


def test_the_last_answer_counts():
    assert answer("1</answer> no: <answer>3 * 5 - 2") == 1.0
    assert answer("3 * 5 - 2</answer> no: <answer>1") == 0.0


def test_an_answer_left_open_is_no_answer():
    assert countdown.grade_countdown("</think>\n<answer> 3 * 5 - 2", PUZZLE)["answer"] == 0.0


def test_division_is_exact():
    assert answer("5 / (1 - 4 / 3)", puzzle("-15", 5, 1, 4, 3)) == 1.0
    assert answer("3 / (8 / 8 - 1)", puzzle("0", 3, 8, 8, 1)) == 0.0


def test_a_decimal_target_is_met_within_a_hundred_thousandth():
    assert answer("98 / (47 - 52) + 47", puzzle("27.4", 98, 47, 47, 52)) == 1.0
    assert answer("10 / (60 - 57) * 80", puzzle("266.6666666666667", 10, 57, 60, 80)) == 1.0
    assert answer("10 / (60 - 57) * 80", puzzle("266.6667", 10, 57, 60, 80)) == 0.0


def test_mistake_8_the_prompt_earns_nothing_for_an_empty_completion():
    seen_by_the_field = PUZZLE.prompt + ""
    assert countdown.format_value(seen_by_the_field) == 0.5
    assert countdown.grade_countdown("", PUZZLE) == {"format": 0.0, "answer": 0.0}


PROCESSOR_S = 10.0
"""Milliseconds are what it takes: only what grows faster than its text, or hangs, comes near."""


@contextmanager
def ended_after(processor_s):
    """Break off what takes longer, in processor time: a busy machine changes nothing."""

    def too_long(_signal, _frame):
        raise AssertionError(f"still at it after {processor_s} s")

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, processor_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def test_mistake_9_a_tower_of_powers_is_refused_at_once():
    with ended_after(PROCESSOR_S):
        assert answer("9**9**9", puzzle("387420489", 9, 9, 9)) == 0.0
        assert answer("7 // 2", puzzle("3", 7, 2)) == 0.0


def test_mistake_10_a_negative_target_can_be_met():
    assert not "-11".isdigit()  # the field's check
    assert answer("69 - (55 + 25)", puzzle("-11", 69, 55, 25)) == 1.0


def test_mistake_10_a_line_break_inside_the_answer_costs_nothing():
    assert not re.fullmatch(r"[0-9+\-*/() ]+", "\n(3 * 5)\n - 2\n")  # the field's check
    assert answer("\n(3 * 5)\n - 2\n") == 1.0


HUGE = 200_000


@pytest.mark.parametrize(
    "text",
    [
        "(" * HUGE + "3" + ")" * HUGE,
        "-" * HUGE + "3 * 5 - 2",
        "3 * 5 - 2" + " " * HUGE,
        "9" * HUGE,
        "3*" * HUGE,
        "<answer>" * HUGE,
        "<answer>" * HUGE + "</answer>",
        "</think>\n<answer>" * HUGE,
        "</answer>" * HUGE + "<answer>",
        "<answer></answer>" * HUGE,
        "\u0663 * \u0665 - \u0662",
        "\u00b3 * 5 - 2",
        "\uff13 * \uff15 \uff0d \uff12",
        "3\u00a0*\u20035\x00-\x1b2",
        "\ud800\udfff",
        "__import__('os').abort()",
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_hostile_text_is_graded_in_milliseconds(text):
    with ended_after(PROCESSOR_S):
        for completion in (text, f" </think>\n<answer>{text}</answer>"):
            assert set(countdown.grade_countdown(completion, PUZZLE)) == {"format", "answer"}


def test_nesting_is_read_up_to_its_limit():
    def nested(depth):
        return "(" * depth + "3 * 5 - 2" + ")" * depth

    assert answer(nested(countdown.MAX_DEPTH)) == 1.0
    assert answer(nested(countdown.MAX_DEPTH + 1)) == 0.0


@pytest.mark.parametrize("text", ["-11", "27.4", "0", "-15.727272727272727"])
def test_a_decimal_number_is_a_target(text):
    assert countdown.is_target(text)


@pytest.mark.parametrize("text", ["", "x", "1e9", "1/3", "nan", "5 ", "\u0663", "9" * 99])
def test_anything_else_is_not_a_target(text):
    assert not countdown.is_target(text)


def test_exact_match_ignores_surrounding_white_space_only():
    example = Example(0, "What is 3 + 5?", "8", True)
    values = {text: grade_exact(text, example)["exact"] for text in ("8", " 8\n", "8.", "", "18")}
    assert values == {"8": 1.0, " 8\n": 1.0, "8.": 0.0, "": 0.0, "18": 0.0}


def test_length_is_the_difference_in_characters_whichever_is_longer():
    example = Example(0, "Capital of Peru?", "Lima", True)
    assert grade_length("Lima.", example) == {
        "length": -1.0,
        "length_difference": 1.0,
    }
    assert grade_length("", example) == {"length": -4.0, "length_difference": 4.0}
    assert grade_length("Límä", example) == {
        "length": 0.0,
        "length_difference": 0.0,
    }
