"""The built-in rewards: what earns, what does not, and that no text or pattern is too much."""

import pytest

from germline.graders.builtin_rewards import make_rubric, rewards
from germline.graders.pool import GraderPool
from germline.types import Example
from tests.hang_limit import HANG_S


def score(name, text, answer, **settings):
    rubric = make_rubric((name,), **settings)
    return rubric(text, Example(0, "?", answer, True, {"pattern": answer}))[name]


@pytest.mark.parametrize(
    ("text", "answer", "value"),
    [
        ("Paris", "Paris", 1),
        ("It is Paris.", "Paris", 1),
        *((text, "Paris", 0) for text in ("paris", "Parisian", "")),
        ("18", "8", 0),
        ("1 8!", "8", 1),
        ("a+b", "a+b", 1),
        ("aab", "a+b", 0),
        ("(x)", "(x)", 1),
    ],
)
def test_an_answer_is_contained_as_whole_words(text, answer, value):
    assert score("contains", text, answer) == value


@pytest.mark.parametrize(
    ("text", "answer", "value"),
    [
        ("18", "18", 1),
        ("18.0", "18", 1),
        ("First 7, so the answer is 18.", "18", 1),
        ("18 or 19", "18", 0),
        ("1,234,567", "#### 1234567", 1),
        *((text, "-3", 1) for text in ("-3", "It is \u22123.", "x=-3", "It is _-3_.")),
        *((text, "3", 0) for text in ("It is \u22123.", "It is __-3__.", "\u0663")),
        *((text, "3", 1) for text in ("5\u22123", "5 - 3", "5-3")),
        *((text, "0.5", 1) for text in (".5", "5e-1")),
        ("0.30000000000000004", "0.3", 1),
        ("0.31", "0.3", 0),
        ("1e999999999", "1", 0),
        ("9" * 65, "9" * 64, 0),
        ("2", "1/2", 0),
        ("3/2", "1/2", 0),
        ("0.5", "1/2", 1),
        (r"so \frac{2}{4}", "1/2", 1),
        ("1 1/2 hours", "1.5", 1),
        ("on 1/2/2026", "2026", 1),
        ("5/0", "5", 0),
        ("3,4", "34", 0),
        ("34", "3,4", 0),
        ("3,14", "314", 0),
        ("1,234,56", "123456", 0),
        ("0,123", "123", 1),  # 0 and 123
        ("-$5", "-5", 1),
        ("-$5", "5", 0),
        ("\u20135", "-5", 1),
        ("pages 3\u20135", "5", 1),
        ("1{,}234", "1234", 1),
        ("1'234", "234", 0),
        ("1.234.567", "567", 0),
        (r"\frac{1}{\frac{2}{3}}", "3/2", 1),
        (r"\frac{\frac12}{3}", "1/6", 1),
        ("-1½", "-1.5", 1),
        ("½", "1/2", 1),
        ("1\u20442", "0.5", 1),
        ("\uff11\uff12", "12", 1),
        ("After all, the answer is ½", "1/2", 1),
        ("After all, it is not 1 but \uff11\uff12 now", "12", 1),
        (r"\frac{\$5}{2}", "2.5", 1),
        ("x = - 5", "-5", 1),
        ("-5", "- 5", 1),
        (r"0.\overline{3}", "1/3", 1),
        (r"0.\overline{3}", "3", 0),
        ("10 - 5", "5", 1),
        ("1\u202f234", "1234", 1),
        ("1\u00a0234.5", "1234.5", 1),
        ("none", "3", 0),
        ("", "3", 0),
    ],
)
def test_the_last_number_counts(text, answer, value):
    assert score("numeric", text, answer, tolerance=1e-6) == value


@pytest.mark.parametrize(
    "answer",
    [
        *("1 000", "5-7", "5\u20137", "3 or 4", "10 - 5", "10^6", "1_000", "2026-11-27", "1|2"),
        *("0.(6)", "1.2(34)", "0.333...", "0.3\u2026"),
    ],
)
def test_numbers_that_are_joined_are_no_gold_answer(answer):
    assert "must be one number" in rewards()["numeric"].check_answer(answer)


@pytest.mark.parametrize(
    "answer", ["2 + 2 = 4", "In 3 days 4", "3.\n#### 4", "7/2 or so 4", "=4", "so it is 4..."]
)
def test_the_last_number_of_a_solution_is_its_gold_answer(answer):
    assert score("numeric", "4", answer) == 1


@pytest.mark.parametrize("name", ["exact", "contains", "numeric", "regex"])
def test_any_gold_answer_of_several_is_right(name):
    facts = {"pattern": "1", "other_answers": ("2", "3")}
    example = Example(0, "?", "1", True, facts)
    rubric = make_rubric((name,), tolerance=0.0)
    assert [rubric(text, example)[name] for text in "1234"] == [1, 1, 1, 0]


def test_long_numbers_are_compared_exactly():
    assert score("numeric", str(10**40 + 1), str(10**40)) == 0
    assert score("numeric", str(10**40), str(10**40)) == 1


@pytest.mark.parametrize(
    ("text", "answer", "value"),
    [
        ('{"a": 1, "b": [true, null]}', '{"b": [true, null], "a": 1.0}', 1),
        (' {"a": 1}\n', '{"a": 1}', 1),
        ('{"a": true}', '{"a": 1}', 0),
        ('{"a": 1, "b": 2}', '{"a": 1}', 0),
        ("[1, 2]", "[2, 1]", 0),
        ("[1]", "[1, 2]", 0),
        ("NaN", "", 0),
        ('["cafe\u0301"]', '["caf\u00e9"]', 1),
        ("{}", "", 1),
        ("Sure: {}", "", 0),
        ("```json\n{}\n```", "", 0),
        ("[" * 100_000, "[]", 0),
        ("9" * 100_000, "9", 0),
    ],
)
def test_json_is_compared_as_values(text, answer, value):
    assert score("json", text, answer) == value


def test_a_pattern_is_searched_for():
    assert score("regex", "the answer is 8.", r"\b[0-9]\b") == 1
    assert score("regex", "eight", r"\b[0-9]\b") == 0
    assert score("regex", "eight", "nine", pattern="^e.*t$") == 1


def test_a_pattern_that_explodes_costs_a_text_its_timeout_and_no_more():
    bomb = make_rubric(("regex",), pattern="(a+)+$")
    example = Example(0, "?", "", True)
    with GraderPool(bomb, {"regex": 1.0}, {"regex": 0.0}, timeout_s=1.0) as pool:
        pool.submit(["a"], [example]).result(timeout=HANG_S)
        grades = pool.submit(["aaa", "a" * 40 + "!", "aa"], [example] * 3).result(timeout=HANG_S)
    assert [grade.reward for grade in grades] == [1.0, 0.0, 1.0]
    assert grades[1].failure == "timeout after 1.0 s"


def test_what_breaks_a_reward_with_negative_weight_earns_its_highest_value():
    assert rewards()["contains"].floor(-0.5) == 1.0
    assert rewards()["length"].floor(0.01) == -2000.0
