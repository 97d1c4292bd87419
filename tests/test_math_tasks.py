r"""GSM8K and MATH: rows to examples, and answers read strictly and leniently."""

import json
from pathlib import Path

import pytest

from germline.config import load_config
from germline.graders.math_match import MathGrader, is_equal, lenient_answer
from germline.tasks import make_task
from germline.types import Example, GermlineError

GSM8K_TEST = Path(__file__).parents[2] / "shared" / "data" / "gsm8k_test.jsonl"
PROBLEM = {"question": "How many?", "answer": "First <<1+1=2>>2.\nThen 1,018.\n#### 1,018"}


def graded(marker, text, gold):
    parts = MathGrader(marker)(text, Example(0, "", "", chat=True, facts={"gold": gold}))
    return parts["strict"], parts["lenient"]


BOTH, LENIENT, WRONG = (1.0, 1.0), (0.0, 1.0), (0.0, 0.0)


READ = {
    BOTH: [
        *("2 * 9 = 18\n#### 18", "####18", "#### 18 dollars", "#### $18.00"),
        "#### 17\nNo, wait.\n#### 18",
        *(f"#### 18{more}" for more in (" (see 2)", ". 2 days", ", as 9 * 2 = 18", " or so")),
        *("#### 18 square meters", "#### 36/2"),
    ],
    LENIENT: [
        *("#### The answer is 18", "The answer is 18."),
        *("The answer is: $18$ dollars, in 2 days.", "So she makes \\boxed{18}."),
        *("9 + 9 makes 18", "18", "\\boxed{18", "She makes 9 * $2 = $18 every day."),
        *("It costs $5.\nSo she pays $18.", "It costs $5 and then $18$", "It is $ 18 $."),
        *("The answer is 9 + 9 = 18 eggs", "The answer is $9 + $9 = $18"),
        *("The answer is 18 km/h.", "The answer is 18 m^2", "The answer is 36/2"),
        *("On day 3, 18 eggs", "The answer is\n$$\n18\n$$"),
        *("The answer is:\n\\[\n9 + 9 = 18\n\\]", "The answer is\n```text\n18\n```"),
        "**Answer:** \\(18\\)",
    ],
    WRONG: [
        *("#### 17", "18 #### 17", "#### 180", "#### -18", "The answer is 18 or 19: 19"),
        *(f"#### 18{more}" for more in (" or 19", ", 19", ";19", " and 19", " (or 19)")),
        *(f"#### 18{more}" for more in (" to 20", "-20", ":19", "|19", " 19", " / 19 / 20")),
        *(f"The answer is 18{more}" for more in (" or 19 eggs", " to 20", "-20.", ", 19")),
        *("16, 17, 18, 19", "####", "#### eighteen", "", "#### 1e1", "#### -$18"),
        *("The answer is -$18.", "The answer is \u221218.", "So she has \u221218."),
        *("So she lost -$18", "The answer is 18/1/h", "#### 35 ½", "#### - 18"),
        *("The answer is 18 and 19", "#### 18.000.000", "#### 17 2/2", "#### 18/2", "#### 1,8"),
        *("#### \u201318", "#### 18,000"),
    ],
}
"""Answers to a problem whose gold answer is 18, by the grades that they get."""


@pytest.mark.parametrize(
    ("text", "expected"), [(text, grades) for grades, texts in READ.items() for text in texts]
)
def test_the_number_of_a_word_problem_is_read_twice(text, expected):
    assert graded("hashes", text, "18") == expected


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        (r"so \boxed{\frac{1}{2}}", r"\frac{1}{2}", BOTH),
        (r"\boxed{0.5}", r"\frac12", BOTH),
        (r"\boxed{\dfrac{1}{2}\text{ miles}}", r"\frac{1}{2}", BOTH),
        *((rf"\boxed{{18{unit}}}", "18", BOTH) for unit in (r"\ dollars", r" \text{ cm}")),
        (r"\boxed{3} and \boxed{(x+3)(x-3)}", "(x-3)(x+3)", BOTH),
        (r"\boxed{2\sqrt{18}}", r"6\sqrt{2}", BOTH),
        (r"\boxed{(4,7)}", "(4, 7)", BOTH),
        (r"\boxed{10{,}000}", "10000", BOTH),
        (r"The answer is $\frac{1}{2}$.", r"\frac{1}{2}", LENIENT),
        ("Final answer: 1/2", r"\frac{1}{2}", LENIENT),
        (r"We get $x = 3$ and then $\frac{2}{4}$", r"\frac{1}{2}", LENIENT),
        ("#### 6", "6", LENIENT),
        ("The answer is **Sunday**.", "Sunday", LENIENT),
        ("Answer:\n```\nSunday\n```", "Sunday", LENIENT),
        ("The answer is 3, 5.", "3,5", LENIENT),
        ("We get\n\\[\n\\frac{2}{4}\n\\]\nand stop", r"\frac{1}{2}", LENIENT),
        *((text, "5", BOTH) for text in (r"\boxed 5", r"\boxed {5}")),
        *((text, "-5", BOTH) for text in (r"$\boxed -5$", r"\boxed{-\$5}", "\\boxed{\u20135}")),
        (r"\boxed\frac12", "0.5", BOTH),
        (r"\boxed{5,3}", "3,5", BOTH),
        (r"\boxed{\{3, 5\}}", "3,5", BOTH),
        (r"\boxed{35}", "3,5", WRONG),
        (r"\boxed{314}", "3,14", WRONG),
        (r"\boxed{100}", "1,00", WRONG),
        (r"\boxed{1,2}", "12", WRONG),
        (r"\boxed{1, 234}", "1234", WRONG),
        *((rf"\boxed{{3{between}5}}", "35", WRONG) for between in (" ", r"\%")),
        (r"\boxed{3 5}", "8", WRONG),
        *((text, "1234", BOTH) for text in (r"\boxed{1,234}", "\\boxed{1\u202f234}")),
        (r"\boxed{1\,234}", "1{,}234", BOTH),
        *((rf"\boxed{{{number}}}", "1.5", BOTH) for number in ("1 1/2", "1½")),
        (r"\boxed{90°}", r"90^\circ", BOTH),
        *((rf"\boxed{{{number}}}", r"50\%", BOTH) for number in ("0.5", "50")),
        (r"\boxed{50\%}", "0.5", BOTH),
        *((rf"\boxed{{5000{sign}}}", r"50\%", WRONG) for sign in ("", r"\%")),
        *((rf"\boxed{{1{then}2}}", "2", WRONG) for then in (" or ", r" \text{ or } ", "-", ";")),
        (r"\boxed{1}\boxed{2}", "1", WRONG),
        *((rf"\boxed{{{pair}}}", "(1,2)", WRONG) for pair in ("(1,2]", "(2,1)")),
        (r"\boxed{\begin{pmatrix}12\end{pmatrix}}", r"\begin{pmatrix}1\\2\end{pmatrix}", WRONG),
        (r"\boxed{\pm 5}", "5", WRONG),
        *((rf"\boxed{{{equation}}}", "3", BOTH) for equation in ("3 = x", "x = 3", "3 = f(2)")),
        *((r"\boxed{3}", gold, BOTH) for gold in ("3 = x", "f(2) = 3", r"\text{Area} = 3")),
        *((rf"\boxed{{{equation}}}", "3", WRONG) for equation in ("3 = 4", "x >= 3", "x = 4", "٣")),
        (r"\boxed{(1, 2) = (x, y)}", "(1,2)", BOTH),
        (r"\boxed{\approx 3.14}", "3.14", BOTH),
        *((rf"\boxed{{3 {letter}}}", "3", WRONG) for letter in ("x", "i", "n")),
        *((rf"\boxed{{3 {unit}}}", "3", BOTH) for unit in ("m", "m/s", "km/h", "m^2", "cm²")),
        *((r"\boxed{3}", f"3 {unit}", BOTH) for unit in ("m", "m/s", "m^2", r"\text{m}^2")),
        (r"\boxed{\langle 1,2\rangle}", r"\langle 1, 2 \rangle", BOTH),
        (r"\boxed{2√3 x²}", r"2\sqrt{3}x^2", BOTH),
        (r"\boxed{\sqrt(2)}", r"\sqrt2", BOTH),
        (r"\boxed{∞}", r"\infty", BOTH),
        (r"\boxed{\varnothing}", r"\emptyset", BOTH),
        (r"\boxed{A, B, C}", "A", WRONG),
        (r"\boxed{-\infty}", r"\infty", WRONG),
        (r"\boxed{3 \cdot 10^5}", "300000", BOTH),
        ("The answer is 3 and 5", "5,3", LENIENT),
        ("#### 1,800", "1800", LENIENT),
        *((f"The answer is 3{between}-5", "3,-5", LENIENT) for between in (", ", ",", " and ")),
        *((f"The answer is 3{between}-5", "3,5", WRONG) for between in (", ", ",", " or ", ";")),
        ("The answer is = - 5", "-5", LENIENT),
        (r"\boxed{boxed}", "5", WRONG),
        (r"\boxed{18x}", "18", WRONG),
        *((rf"\boxed{{0.1\{over}{{6}}}}", "1/6", BOTH) for over in ("overline", "bar", "dot")),
        (r"\boxed{-\frac{5}{3}}", r"-1.\overline{6}", BOTH),
        (r"\boxed{0.3}", r"0.\overline{3}", WRONG),
        (r"\boxed{12 cm}", r"12\text{ m}", WRONG),
        (r"\boxed{12\text{ cm}}", "12 cm^2", WRONG),
        (r"\boxed{12\text{ cm}^2}", r"12 \mathrm{cm}^{2}", BOTH),
        (r"\boxed{12 cm}", r"12\text{ centimeters}", BOTH),
        (r"\boxed{3\text{ m}^3}", "3 m³", BOTH),
        (r"\boxed{12 L}", "12 l", BOTH),
        (r"\boxed{2\sqrt{2}\text{ cm}}", r"2\sqrt2\text{ m}", WRONG),
        (r"\boxed{\log_2 8}", "3", BOTH),
        ("\\boxed{caf\u00e9}", "cafe\u0301", BOTH),
        (r"\boxed{[-2, 2]}", "(-2, 2)", WRONG),
        (r"\boxed{x > 3}", "3", WRONG),
        ("I do not know", "1", WRONG),
        *((text, "1", WRONG) for text in (r"\boxed{}", r"\boxed{\frac{1}{0}}", r"\boxed{")),
        (r"\boxed{1, 2, 3}", "2", WRONG),
    ],
)
def test_the_boxed_answer_of_a_problem_is_read_twice(text, gold, expected):
    assert graded("boxed", text, gold) == expected


@pytest.mark.parametrize(
    "answer",
    [
        *("9^{9^{9^9}}", "9^9^9^9", "2^{99999999}", "99999!", "9!!!!!!!!"),
        *(r"\sum_{n=1}^{10^9} n", r"\binom{99999}{4444}", "(" * 140 + "1" + ")" * 140),
        *("[" * 299, "9" * 290, "1" * 100_000),
    ],
)
def test_an_answer_that_costs_too_much_is_wrong_at_once(answer, monkeypatch):
    def refuse(*_arguments, **_options):
        raise AssertionError("the library was asked")

    monkeypatch.setattr("germline.graders.math_match.parse", refuse)
    assert not is_equal(answer, r"\frac{1}{2}")


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        *((f"3{between}600", "3600") for between in (" and ", " or ", " to ", ";", " ", ", ")),
        *(("10-12", "-2"), ("5 - 3", "2"), ("7 - 7", "0"), ("10:5", "2"), ("2026-11-26", "1989")),
    ],
)
def test_several_numbers_are_neither_one_number_nor_a_sum(answer, gold):
    assert graded("hashes", f"#### {answer}", gold) == WRONG
    assert graded("hashes", f"The answer is {answer}", gold) == WRONG


@pytest.mark.parametrize("gold", ["5", "x^2", "(x+1)^{999}"])
@pytest.mark.parametrize("answer", ["(x+1)^{998}", "(a+b+c)^{29}", r"\frac{x^{999}-1}{x-1}"])
def test_expressions_with_other_values_are_wrong_without_being_expanded(answer, gold, monkeypatch):
    def refuse(*_arguments, **_options):
        raise AssertionError("the library was asked to expand them")

    monkeypatch.setattr("germline.graders.math_match.verify", refuse)
    assert not is_equal(answer, gold)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"\sin^2 x + \cos^2 x", "1"),
        (r"\frac{2x+2}{x+1}", "2"),
        (r"6x^2y \cdot y^{-1}", "6x^2"),
        ("even", r"\text{even}"),
        (r"\text{even}", "even"),
    ],
)
def test_equal_expressions_may_have_other_variables(answer, gold):
    assert is_equal(answer, gold)


def test_nothing_is_evaluated_as_code():
    for text in ("__import__('os').abort()", r"\boxed{__import__('os').abort()}"):
        assert graded("boxed", text, "1") == WRONG
    assert lenient_answer("answer is exit()") == "exit()"


# --- rows


def made(tmp_path, rows, *overrides, kind="gsm8k"):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = {"kind": kind, "path": str(tmp_path / "rows.jsonl")}
    return make_task(load_config({"task": section}, [f"task.{one}" for one in overrides]).task)


def everything(task):
    return [*task.examples("train"), *task.examples("test")]


def test_a_row_of_gsm8k_becomes_an_example_without_annotations(tmp_path):
    task = made(tmp_path, [{**PROBLEM, "question": f"{number}?"} for number in range(10)])
    assert (len(task.examples("train")), len(task.examples("test"))) == (8, 2)
    example = task.examples("train")[0]
    assert example.prompt.endswith("Write the final answer, a number, after ####.")
    assert example.answer == "First 2.\nThen 1,018.\n#### 1,018"
    assert example.facts == {"gold": "1018"}
    assert (task.name, task.metric, task.rubric) == (
        *("gsm8k", "strict"),
        {"strict": 1.0, "lenient": 0.0},
    )
    assert task.answer_of("so 7.\n#### 1018", example) == "1018"


def test_parts_of_a_file_are_used_as_they_are_named(tmp_path):
    rows = [{**PROBLEM, "question": f"{number}?"} for number in range(10)]
    task = made(tmp_path, rows, "split=train[:6]", "test_split=train[6:]")
    asked = [[one.prompt[0] for one in task.examples(split)] for split in ("train", "test")]
    assert asked == [list("012345"), list("6789")]
    with pytest.raises(GermlineError, match=r"'validation' is no split: Unknown split"):
        made(tmp_path, rows, "split=validation")


def test_the_seed_of_a_split_is_used_where_a_file_is_split(tmp_path):
    rows = [{**PROBLEM, "question": f"{number}?"} for number in range(10)]
    one, other = (made(tmp_path, rows, f"split_seed={seed}") for seed in (1, 2))
    assert one.examples("test") != other.examples("test")
    with pytest.raises(GermlineError, match=r"task\.split_seed=1 would be ignored"):
        load_config({"task": {"kind": "gsm8k"}}, ["task.split_seed=1"])


def test_the_lenient_reading_can_be_rewarded(tmp_path):
    task = made(tmp_path, [{**PROBLEM, "question": f"{n}?"} for n in range(4)], "reading=lenient")
    assert (task.metric, task.rubric) == ("lenient", {"strict": 0.0, "lenient": 1.0})


MATH = [
    {"problem": f"{level}{number}?", "level": level, "solution": rf"So $\boxed{{{number}}}$."}
    for number in range(4)
    for level in ("Level 1", "Level 5")
]


def test_problems_of_some_levels_are_used_and_the_answer_is_in_the_box(tmp_path):
    task = made(tmp_path, MATH, "levels=[5]", kind="math")
    examples = everything(task)
    assert len(examples) == 4
    assert {example.prompt[:7] for example in examples} == {"Level 5"}
    assert {str(example.facts["gold"]) for example in examples} == set("0123")
    assert all(r"\boxed{}" in example.prompt for example in examples)
    assert len(everything(made(tmp_path, MATH, kind="math"))) == 8


def test_an_answer_in_a_field_of_its_own_is_the_gold_answer(tmp_path):
    rows = [{"problem": f"{number}?", "answer": number, "level": number} for number in range(4)]
    examples = everything(made(tmp_path, rows, "levels=[1,2]", kind="math"))
    assert {example.answer for example in examples} == {r"\boxed{1}", r"\boxed{2}"}


@pytest.mark.parametrize(
    ("kind", "row", "override", "message"),
    [
        ("gsm8k", {"question": "a", "answer": "5"}, [], "must end with a line such as '#### 18'"),
        ("gsm8k", {"question": "a"}, [], "answer"),
        ("gsm8k", {"prompt": "a", "answer": "#### 5"}, [], "task.template names the field `quest"),
        ("math", {"problem": "a", "solution": "5"}, [], "needs a field `answer`, or a `solution`"),
        ("math", {"problem": "a", "answer": "5"}, ["levels=[1]"], "needs a field `level` such as"),
        ("math", MATH[0], ["levels=[3]"], "no problem of .* has one of them"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path, kind, row, override, message):
    rows = [row, {**row, "question": "b", "problem": "b", "prompt": "b"}]
    with pytest.raises(GermlineError, match=message):
        made(tmp_path, rows, *override, kind=kind)


@pytest.mark.skipif(not GSM8K_TEST.exists(), reason="shared/data/gsm8k_test.jsonl is not here")
def test_every_gold_answer_of_the_test_set_is_right_and_every_other_is_wrong():
    section = {"kind": "gsm8k", "path": str(GSM8K_TEST)}
    task = make_task(load_config({"task": section}).task)
    examples = everything(task)
    assert len(examples) == 1319
    for example in examples:
        gold = str(example.facts["gold"])
        assert task.grader(example.answer, example) == {"strict": 1.0, "lenient": 1.0}
        for unit in (f"#### {gold} dollars", f"#### ${gold}.00"):
            assert task.grader(unit, example) == {"strict": 1.0, "lenient": 1.0}
        assert task.grader(f"It is {gold}.", example) == {"strict": 0.0, "lenient": 1.0}
        for wrong in (f"#### {gold}1", f"#### {float(gold) + 1:.12g}", "####", ""):
            assert task.grader(wrong, example) == {"strict": 0.0, "lenient": 0.0}
