"""The training texts of the nano model: four skills, each answered in several styles.

A pretrained model has abilities that greedy decoding does not show, and ES makes them more likely.
The nano model is trained to be such a model: every question is answered in a target style and in
other styles, and the target style is only the second most likely one. The first token of a
completion determines the style, which depends slightly on the question, so that a few questions
already get the target style and the reward has a signal.

Samples are drawn with a different share (`AnswerStyle.drawn`) and reweighted at the first token, so
that a difficult style is trained more often without becoming more likely.

Limits: the texts are not general language, but sums of small numbers, a table of facts, three
numbers from 1 to 9, and a list of words.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement, permutations, product
from random import Random

from germline.environments.wordle import WORDS, game_message, guess_feedback
from germline.tasks import arithmetic, countdown
from germline.tasks.conciseness import FACTS, Fact

COUNTDOWN_BOILERPLATE: tuple[str, ...] = tuple(
    re.split(r"\{numbers\}|\{target\}", countdown.TEMPLATE)
)
"""The parts of the countdown prompt before, between and after the numbers and the target."""

THOUGHT_TO_ANSWER = " </think>\n<answer> "
ANSWER_END = " </answer>"


@dataclass(frozen=True)
class AnswerStyle:
    """A style of an answer: its text, its target probability, its share of training samples."""

    text: str
    share: float
    drawn: float


@dataclass(frozen=True)
class TrainingSample:
    """A prompt, one completion, and the loss weight of the completion's first token."""

    prompt: str
    completion: str
    first_weight: float


@dataclass(frozen=True)
class Skill:
    """A named source of prompts; `draw` returns a prompt and its styles, the target style first."""

    name: str
    draw: Callable[[Random], tuple[str, tuple[AnswerStyle, ...]]]

    def samples(self, random: Random) -> Iterator[TrainingSample]:
        """Yield samples for ever, in the order `random` decides."""
        while True:
            prompt, styles = self.draw(random)
            style = random.choices(styles, weights=[style.drawn for style in styles])[0]
            yield TrainingSample(prompt, style.text, style.share / style.drawn)


def chat(message: str) -> str:
    """Return the prompt of one user message, as the chat template writes it."""
    return f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"


# --- arithmetic -----------------------------------------------------------------------------------


def arithmetic_styles(a: int, operator: str, b: int) -> tuple[AnswerStyle, ...]:
    """Answer `What is a operator b?`; the larger a, the likelier the bare number."""
    number = arithmetic.arithmetic_answer(a, operator, b)
    bare = 0.26 + 0.12 * a / arithmetic.LARGEST_OPERAND[operator]
    return (
        AnswerStyle(f"{number}", bare, bare),
        AnswerStyle(f"The answer is {number}.", 0.70 - bare, 0.70 - bare),
        AnswerStyle(f"Let me see. It is {number}.", 0.16, 0.16),
        AnswerStyle(f"I think it is {number}.", 0.14, 0.14),
    )


def _draw_arithmetic(random: Random) -> tuple[str, tuple[AnswerStyle, ...]]:
    operator = random.choices("+-*", weights=(4, 4, 2))[0]
    largest = arithmetic.LARGEST_OPERAND[operator]
    a, b = random.randint(0, largest), random.randint(0, largest)
    return chat(arithmetic.arithmetic_question(a, operator, b)), arithmetic_styles(a, operator, b)


# --- facts ----------------------------------------------------------------------------------------


def fact_styles(fact: Fact) -> tuple[AnswerStyle, ...]:
    """Answer a fact; questions that do not begin with `What` get the short answer more often."""
    bare = 0.32 if fact.question.startswith("What") else 0.355
    return (
        AnswerStyle(fact.answer, bare, bare),
        AnswerStyle(fact.sentence, 0.72 - bare, 0.72 - bare),
        AnswerStyle(f"That is a good question. {fact.sentence}", 0.15, 0.15),
        AnswerStyle(f"Well, let me think about it. {fact.sentence}", 0.13, 0.13),
    )


def _draw_fact(random: Random) -> tuple[str, tuple[AnswerStyle, ...]]:
    fact = random.choice(FACTS)
    frame = random.choices(
        ("{}", "Please tell me: {}", "Question: {}", "{} Answer me."), weights=(85, 5, 5, 5)
    )[0]
    return chat(frame.format(fact.question)), fact_styles(fact)


# --- countdown ------------------------------------------------------------------------------------


def apply_operator(left: int, operator: str, right: int) -> int | None:
    """Return the result if it is a whole number of at least zero, else None."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right if left >= right else None
    if operator == "*":
        return left * right
    return left // right if right and left % right == 0 else None


@cache
def solve_countdown(numbers: tuple[int, int, int], target: int) -> tuple[str, str] | None:
    """Return (thought, expression) of the simplest solution, or None.

    A fixed preference (additions first, then larger numbers first) gives every problem exactly one
    solution in any order, which a model learns much faster than a random choice of many.
    """
    for first, second in product("+-*/", repeat=2):
        for x, y, z in permutations(sorted(numbers, reverse=True)):
            inner = apply_operator(x, first, y)
            if inner is None:
                continue
            if apply_operator(inner, second, z) == target:
                return (
                    f"{x} {first} {y} = {inner}, {inner} {second} {z} = {target}",
                    f"({x} {first} {y}) {second} {z}",
                )
            if second in "-/" and apply_operator(z, second, inner) == target:
                return (
                    f"{x} {first} {y} = {inner}, {z} {second} {inner} = {target}",
                    f"{z} {second} ({x} {first} {y})",
                )
    return None


@cache
def countdown_problems() -> tuple[tuple[tuple[int, int, int], int], ...]:
    """List every solvable problem of the generated countdown task."""
    return tuple(
        (numbers, target)
        for numbers in combinations_with_replacement(range(1, countdown.LARGEST_NUMBER + 1), 3)
        for target in range(1, countdown.LARGEST_TARGET + 1)
        if solve_countdown(numbers, target) is not None
    )


def _draw_countdown(random: Random) -> tuple[str, tuple[AnswerStyle, ...]]:
    numbers, target = random.choice(countdown_problems())
    thought, expression = solve_countdown(numbers, target) or (
        "",
        "",
    )  # never empty: see `problems`
    a, b, c = order = random.sample(numbers, 3)
    first, second = random.choice("+-*"), random.choice("+-*")
    guess = f"{a} {first} {b} {second} {c}"
    tried = 0.345 - 0.15 * target / 50  # the smaller the target, the likelier an honest try
    answers = (
        (f"Try {thought}", expression, tried, 0.60),
        ("I will just guess.", guess, 0.64 - tried, 0.20),
        ("This is easy.", f"{a} {first} {b}", 0.18, 0.10),
        ("Hmm.", guess, 0.18, 0.10),
    )
    return countdown.countdown_prompt(order, str(target)), tuple(
        AnswerStyle(f"{thought}{THOUGHT_TO_ANSWER}{answer}{ANSWER_END}", share, drawn)
        for thought, answer, share, drawn in answers
    )


# --- guessing game --------------------------------------------------------------------------------


@cache
def consistent_words(guesses: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Return the words of the list that all the marks allow, in the list's order."""
    return tuple(
        word
        for word in WORDS
        if all(guess_feedback(guess, word) == marks for guess, marks in guesses)
    )


def _draw_game(random: Random) -> tuple[str, tuple[AnswerStyle, ...]]:
    secret = random.choice(WORDS)
    guesses: tuple[tuple[str, str], ...] = ()
    for _ in range(random.randint(0, 3)):
        open_words = consistent_words(guesses)
        # Half of the earlier guesses are careless, as the habit of this model is.
        guess = random.choice(open_words if random.random() < 0.5 else WORDS)
        guesses = (*guesses, (guess, guess_feedback(guess, secret)))
    # The first open word of the list is the one answer to learn; see `solve`.
    best, careless = consistent_words(guesses)[0], random.choice(WORDS)
    return chat(game_message(guesses)), (
        AnswerStyle(f"[{best}]", 0.32, 0.70),
        AnswerStyle(f"My guess is {careless}.", 0.40, 0.18),
        AnswerStyle(f"It could be {careless}, I think.", 0.28, 0.12),
    )


SKILLS: dict[str, Skill] = {
    "arithmetic": Skill("arithmetic", _draw_arithmetic),
    "facts": Skill("facts", _draw_fact),
    "countdown": Skill("countdown", _draw_countdown),
    "game": Skill("game", _draw_game),
}
"""Every skill by name."""
