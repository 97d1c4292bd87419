"""What the graders say about a completion; how they survive it is in test_grader_pool."""

import re
from fractions import Fraction

import numpy as np
import pytest

from germline.graders import countdown
from germline.graders.builtin_rewards import exact, grade_length
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


def test_mistake_9_a_tower_of_powers_is_refused_at_once():
    assert answer("9**9**9", puzzle("387420489", 9, 9, 9)) == 0.0
    assert answer("7 // 2", puzzle("3", 7, 2)) == 0.0


def test_an_expression_is_read_up_to_a_number_of_symbols():
    def nested(depth, signs):
        return "-" * signs + "(" * depth + "3 * 5 - 2" + ")" * depth

    most = countdown.MAX_SYMBOLS - 5
    assert answer(nested(most // 2, 0)) == answer(nested(0, most // 2 * 2)) == 1.0
    assert answer(nested(most // 2 + 1, 0)) == answer(nested(0, most // 2 * 2 + 2)) == 0.0
    assert answer("(" * 250 + "3 * 5") == answer("- " * 99_999 + "3 * 5 - 2") == 0.0


def test_exact_match_ignores_surrounding_white_space_only():
    example = Example(0, "What is 3 + 5?", "8", True)
    for text, value in {"8": 1.0, " 8\n": 1.0, "8.": 0.0, "": 0.0, "18": 0.0}.items():
        assert exact(text, example) == value


def test_length_is_the_difference_in_characters_whichever_is_longer():
    example = Example(0, "Capital of Peru?", "Lima", True)
    assert grade_length("Lima.", example) == {"length": -1.0, "length_difference": 1.0}
    assert grade_length("", example) == {"length": -4.0, "length_difference": 4.0}
    assert grade_length("Límä", example) == {"length": 0.0, "length_difference": 0.0}


THINK, ANSWER = ("<think>", "</think>"), ("<answer>", "</answer>")
TAGS = [*THINK, *ANSWER, "\n", " ", "</think>\n<answer>", "3 * 5 - 2"]


def oracle(text, numbers, target):
    """Grade a second way: patterns for the format, Python itself for the (white-listed) answer."""
    full = f"<think>{text}"
    exactly = re.match(r"^<think>.*?</think>\n<answer>.*?</answer>$", full, re.DOTALL)
    think = re.search(r"<think>.*?</think>", full, re.DOTALL) is not None
    answers = re.findall(r"(?=<answer>(.*?)</answer>)", full, re.DOTALL)
    form = 1.0 if exactly else 0.1 * think + 0.5 * (len(answers) > 0)
    source = re.sub(r"[ \t\n\r\f\v]", " ", answers[-1]).strip() if answers else ""
    if not re.fullmatch(r"[-+*/() 0-9]{1,200}", source) or re.search(r"\*\*|//", source):
        return {"format": form, "answer": 0.0}
    if sorted(re.findall("[0-9]+", source)) != sorted(map(str, numbers)):
        return {"format": form, "answer": 0.0}
    exact = re.sub("([0-9]+)", r"Fraction(\1)", source)  # Fraction(3) * Fraction(5) - Fraction(2)
    try:
        value = eval(exact, {"Fraction": Fraction, "__builtins__": {}})
    except (SyntaxError, TypeError, ZeroDivisionError):
        return {"format": form, "answer": 0.0}
    return {"format": form, "answer": float(abs(value - Fraction(target)) < Fraction(1, 100_000))}


def drawn_numbers(generator):
    largest = int(generator.choice([9, 99]))
    return generator.integers(1, largest + 1, int(generator.integers(2, 6))).tolist()


def expression(generator, numbers):
    """Combine the numbers in a random order, with random signs, brackets and white space."""
    parts = [str(number) for number in generator.permutation(numbers)]
    while len(parts) > 1:
        at = int(generator.integers(len(parts) - 1))
        sign = str(generator.choice(["+", " - ", " * ", "/", "\n-", "* -"]))
        joined = f"{parts[at]}{sign}{parts[at + 1]}"
        parts[at : at + 2] = [f"({joined})" if generator.random() < 0.6 else joined]
    return parts[0]


def value(text):
    """Return what an expression is worth, or None for a division by zero."""
    try:
        return eval(re.sub("([0-9]+)", r"Fraction(\1)", text.replace("\n", " ")))
    except ZeroDivisionError:
        return None


def decimal(number, places):
    """Write a fraction as a target: -15.72727 or 13."""
    return str(number.numerator) if number.denominator == 1 else f"{float(number):.{places}f}"


def right(generator):
    """Return an expression that hits its target, or misses it by a little."""
    numbers = drawn_numbers(generator)
    text = expression(generator, numbers)
    worth = value(text)
    if worth is None or abs(worth) > 10**9:
        return text, numbers, "1"
    return text, numbers, decimal(worth, int(generator.choice([3, 4, 6, 10, 15])))


def soup(generator):
    """Return tags in any order, some of them around a right answer."""
    return "".join(generator.choice(TAGS, int(generator.integers(0, 9)))), [3, 5, 2], "13"


def drawn(kind, count, seed):
    """Return completions with their puzzles."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        text, numbers, target = kind(generator)
        yield text if kind is soup else f"t</think>\n<answer>{text}</answer>", numbers, target


@pytest.mark.parametrize(
    ("kind", "count", "hits"),
    [(right, 3000, (1500, 3000)), (soup, 2500, (10, 500))],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_the_grader_agrees_with_the_oracle(kind, count, hits):
    earned, hit_targets = 0, []
    for text, numbers, target in drawn(kind, count, seed=count):
        example = Example(0, "", "", False, facts={"numbers": tuple(numbers), "target": target})
        graded = countdown.grade_countdown(text, example)
        assert graded == oracle(text, numbers, target), (text, numbers, target)
        if graded["answer"] == 1.0:
            earned += 1
            hit_targets.append(target)
    least, most = hits
    assert least <= earned <= most  # both verdicts were exercised
    if kind is right:  # so were negative and fractional targets
        assert sum(one.startswith("-") and "." in one for one in hit_targets) > 200
