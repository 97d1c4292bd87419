"""Behavior of answers, whatever reward they earned: detectors, their shares, and a verdict.

A detector looks at texts and not at rewards, so it finds what a reward may favor: empty answers,
loops, one answer for everything. `BROKEN` and `DETECTORS` are the tables; a new detector is one
function and one row. It returns a flag for each answer. The detectors do not check whether a text
makes sense or is right.

Known limits: loops whose repetitions differ in a word are not detected, nor is a change between
languages with the same letters, such as English and French.
"""

import math
import re
import statistics
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from germline.record.metrics_rows import HeldOutSample
from germline.types import Completion, Example, HeldOutScore, Rollout

LONGEST_NGRAM = 16
"""Tokens of the longest n-gram whose repetition is detected."""

ROUNDS = 3
"""Repetitions from which on an n-gram is a loop; two may be emphasis."""

SHORTEST_LOOP = 8
"""Tokens of the shortest loop: `1000000` is a number and not a loop."""

LOOPING = 0.5
"""Share of a text in one loop from which on the text is a repetition."""

FEW_LETTERS, RARE_SCRIPT = 4, 0.01
"""Fewest letters in another script, and share of letters below which a script counts as unused."""

BEGINNING, SAME, SAME_BEFORE, FEW_PROMPTS = 40, 0.8, 0.5, 5
"""Characters of a long common beginning; share of the answers that have it in a collapse, and that
had it before where there is none; fewest prompts of a collapse."""

RISE, RISE_OF_BROKEN, LARGE_RISE, FEW_TEXTS = 0.1, 0.25, 0.5, 3
"""Rises of a share, of the share of broken texts, and of any share, that change the verdict; the
least number of texts in such a rise."""

DRIFT, TEXTS_OF_MEDIAN = 2.0, 10
"""Factor of the median length that changes the verdict, and fewest texts with such a median."""

MARKUP = re.compile(r"</?[A-Za-z|][^<>]*>|\\[A-Za-z]+")
"""Tags and commands of LaTeX."""

ROLE = "user|human|assistant|system|question|q|instruction"
TURN = re.compile(
    rf"^[\s#*]*(?:{ROLE})[ \t*]*(?::|$)|<\|(?:im_start|user|assistant|start_header_id)\|>"
    r"|<start_of_turn>|\[INST\]",
    re.IGNORECASE | re.MULTILINE,
)
"""The beginning of a turn in a chat template, or in a dialog written as text."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion, and what a detector compares it with.

    Attributes:
        completion: without tokens where only its text was recorded.
        gold: the gold answer; empty: none.
        improbable: `TextDivergence.improbable`; None where the start model did not read it.
    """

    prompt: str
    completion: Completion
    gold: str = ""
    improbable: bool | None = None

    @classmethod
    def to(cls, example: Example, said: Completion, *, improbable: bool | None = None) -> "Answer":
        """Return a completion beside the example that it answers."""
        return cls(example.prompt, said, example.answer, improbable)

    @property
    def text(self) -> str:
        """The text of the completion."""
        return self.completion.text


Answers = Sequence[Answer]
Find = Callable[[Answers, Answers, frozenset[int]], list[bool]]
"""(answers, those of the start model, special tokens) -> a flag for each answer."""


def empty(answers: Answers, _start: Answers, _special_ids: frozenset[int]) -> list[bool]:
    """Flag answers without any character."""
    return [not answer.text for answer in answers]


def whitespace(answers: Answers, _start: Answers, _special_ids: frozenset[int]) -> list[bool]:
    """Flag answers with nothing but white space."""
    return [answer.text.isspace() for answer in answers]


def special_tokens(answers: Answers, _start: Answers, special_ids: frozenset[int]) -> list[bool]:
    """Flag answers whose tokens are all special, such as the end-of-sequence token alone.

    The text may contain them: one study counted no hack although all models wrote only
    `<|endoftext|>`. Where special tokens are not known, an empty text has no others, unless a stop
    string cut it off.
    """

    def has_no_others(one: Completion) -> bool:
        ended = not one.text and one.finish in ("eos", "length")
        return ended or (bool(one.tokens) and special_ids.issuperset(one.tokens))

    return [has_no_others(answer.completion) for answer in answers]


def repetition(answers: Answers, _start: Answers, special_ids: frozenset[int]) -> list[bool]:
    """Flag answers of which at least half of the tokens belong to one repeated n-gram."""

    def units(one: Completion) -> Sequence[object]:
        return [t for t in one.tokens if t not in special_ids] or re.findall(r"\w+|\S", one.text)

    return [loop_share(units(answer.completion)) >= LOOPING for answer in answers]


def gibberish(answers: Answers, _start: Answers, _special_ids: frozenset[int]) -> list[bool]:
    """Flag answers with more than half the surprise of a random guess under the start model.

        1/T sum_t -log p_start(y_t | y_<t)  >  1/2 log(vocabulary)

    The threshold, perplexity above the root of the vocabulary size, fits small and large
    vocabularies alike.
    """
    return [answer.improbable is True for answer in answers]


def language_switch(answers: Answers, start: Answers, _special_ids: frozenset[int]) -> list[bool]:
    """Flag answers with most letters in scripts that prompts, gold and starting answers lack."""
    known = Counter[str]()
    for answer in answers:
        known += scripts(answer.prompt) + scripts(answer.gold)
    for answer in start:
        known += scripts(answer.text)
    used = {script for script, n in known.items() if n >= RARE_SCRIPT * known.total()}

    def is_foreign(text: str) -> bool:
        found = scripts(text)
        foreign = sum(n for script, n in found.items() if script not in used)
        return bool(used) and foreign >= FEW_LETTERS and foreign > found.total() / 2

    return [is_foreign(answer.text) for answer in answers]


def template_collapse(answers: Answers, start: Answers, _special_ids: frozenset[int]) -> list[bool]:
    """Flag answers that share their text, or a long beginning, where starting answers did not.

    Four fifths of the answers must share it, and less than half of the starting answers and of the
    gold answers.
    """
    now = [answer.text.strip()[:BEGINNING] for answer in answers]
    common, count = next(iter(Counter(filter(None, now)).most_common(1)), ("", 0))
    before = [
        [answer.text.strip()[:BEGINNING] == common for answer in start],
        [answer.gold.strip()[:BEGINNING] == common for answer in answers if answer.gold],
    ]
    is_new = bool(start) and all(share(flags) < SAME_BEFORE for flags in before)
    few = len({answer.prompt for answer in answers}) < FEW_PROMPTS
    has_collapsed = is_new and not few and count >= SAME * len(answers)
    return [has_collapsed and text == common for text in now]


def truncated(answers: Answers, _start: Answers, _special_ids: frozenset[int]) -> list[bool]:
    """Flag answers that ended at the length limit, or where the context was full."""
    return [answer.completion.finish in ("length", "context") for answer in answers]


def format_only(answers: Answers, _start: Answers, _special_ids: frozenset[int]) -> list[bool]:
    r"""Flag answers of marks alone: tags, `\\boxed{}` and punctuation, no letter and no digit."""

    def is_bare(text: str) -> bool:
        return bool(text.strip()) and not any(map(str.isalnum, MARKUP.sub("", text)))

    return [is_bare(answer.text) and not is_bare(answer.gold) for answer in answers]


def invented_turns(answers: Answers, _start: Answers, _special_ids: frozenset[int]) -> list[bool]:
    """Flag answers after which the model goes on with a turn of a user or of another assistant."""
    return [
        any(answer.text[: turn.start()].strip() for turn in TURN.finditer(answer.text))
        for answer in answers
    ]


BROKEN: dict[str, Find] = {
    "empty": empty,
    "whitespace": whitespace,
    "special_tokens": special_tokens,
    "repetition": repetition,
    "gibberish": gibberish,
    "language_switch": language_switch,
    "template_collapse": template_collapse,
    "format_only": format_only,
}
"""Name -> detector of broken texts."""

DETECTORS = {**BROKEN, "truncated": truncated, "invented_turns": invented_turns}
"""All detectors, in the order in which they are shown; the last ones tell texts that changed."""


def length_drift(answers: Answers, start: Answers) -> float:
    """Return the median length, in characters, as a ratio to that of the starting answers.

    Where prompts are known from the start, answers to others do not count. An answer counts one
    character more, so that empty ones have a ratio.
    """
    asked = {answer.prompt for answer in start}
    same = [answer for answer in answers if answer.prompt in asked] or answers
    now, before = ([1 + len(one.text) for one in some] for some in (same, start or answers))
    return statistics.median(now) / statistics.median(before)


def flags(
    answers: Answers, start: Answers = (), special_ids: frozenset[int] = frozenset()
) -> list[list[str]]:
    """Return the names of the detectors that flag each answer."""
    found = {name: find(answers, start, special_ids) for name, find in DETECTORS.items()}
    return [[name for name in found if found[name][place]] for place in range(len(answers))]


def behavior(
    answers: Answers, start: Answers = (), special_ids: frozenset[int] = frozenset()
) -> dict[str, float]:
    """Return how at least one answer behaves: shares, each between 0 and 1, by detector.

    One answer may count in several; `gibberish` is left out where no answer was read. Beside the
    detectors: `broken`, the share with at least one flag of a broken text; `length_drift`; and
    `texts`, their number.
    """
    by_answer = flags(answers, start, special_ids)
    is_read = any(answer.improbable is not None for answer in answers)
    return {
        name: share([name in names for names in by_answer])
        for name in DETECTORS
        if is_read or name != "gibberish"
    } | {
        "broken": share([not BROKEN.keys().isdisjoint(names) for names in by_answer]),
        "length_drift": length_drift(answers, start),
        "texts": float(len(answers)),
    }


@dataclass(frozen=True, slots=True)
class Verdict:
    """How answers changed since the start.

    Attributes:
        word: `broken`: a quarter more of the texts are broken, or any share rose by a half;
            `changed`: a share rose by a tenth, or the median length doubled or halved.
        rises: the shares that rose: at the start, and now.
        length_drift: see `length_drift`.
        is_other_length: whether it doubled or halved, of as many texts as have a median.
    """

    word: Literal["fine", "changed", "broken"]
    rises: Mapping[str, tuple[float, float]]
    length_drift: float
    is_other_length: bool


def verdict(start: Mapping[str, float], now: Mapping[str, float]) -> Verdict:
    """Judge the behavior of answers by that of the start; see `behavior` for both."""

    def rose(name: str, least: float) -> bool:
        rise = now[name] - start.get(name, 0.0)
        return rise > least - 1e-9 and rise * now["texts"] > FEW_TEXTS - 0.5

    rises = {
        name: (start.get(name, 0.0), now[name])
        for name in DETECTORS
        if name in now and rose(name, RISE)
    }
    is_far = abs(math.log(now["length_drift"])) >= math.log(DRIFT)
    has_median = now["texts"] >= TEXTS_OF_MEDIAN
    found = Verdict("changed", rises, now["length_drift"], is_far and has_median)
    if rose("broken", RISE_OF_BROKEN) or any(rose(name, LARGE_RISE) for name in rises):
        return replace(found, word="broken")
    return found if rises or found.is_other_length else replace(found, word="fine")


def verdict_of(scores: Sequence[HeldOutScore]) -> Verdict | None:
    """Judge the last held-out answers of a run by the first; None without a recorded behavior."""
    if not scores or not scores[0].behavior or not scores[-1].behavior:
        return None
    return verdict(scores[0].behavior, scores[-1].behavior)


def answers_of(rollouts: Sequence[Rollout], examples: Sequence[Example]) -> list[Answer]:
    """Return the answers of a held-out score."""
    asked = {example.index: example for example in examples}
    return [Answer.to(asked[rollout.example], rollout.completion) for rollout in rollouts]


def recorded_answers(samples: Sequence[HeldOutSample]) -> list[Answer]:
    """Return the answers that held_out.jsonl keeps."""
    return [
        Answer(
            sample.prompt,
            Completion(sample.completion, tuple(sample.token_ids), sample.finish, 0),
            sample.answer,
        )
        for sample in samples
    ]


def loop_share(tokens: Sequence[object]) -> float:
    """Return the share of tokens in the longest loop.

    A loop of an n-gram is a sequence in which every token equals the one n positions before it,
    with at least three repetitions and eight tokens.
    """
    longest = 0
    for n in range(1, min(LONGEST_NGRAM, len(tokens) // ROUNDS) + 1):
        repeated = 0
        for place in range(n, len(tokens)):
            repeated = repeated + 1 if tokens[place] == tokens[place - n] else 0
            length = repeated + n
            if length >= max(ROUNDS * n, SHORTEST_LOOP):
                longest = max(longest, length)
    return longest / len(tokens) if tokens else 0.0


def scripts(text: str) -> Counter[str]:
    """Count the letters of a text by script, such as `LATIN` and `CYRILLIC`."""
    letters = filter(str.isalpha, unicodedata.normalize("NFKC", text))
    return Counter(map(_script, letters))


def share(given: Sequence[bool]) -> float:
    """Return the share of the flags that are set; 0 without flags."""
    return sum(given) / len(given) if given else 0.0


@cache
def _script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]
