"""Conciseness: answer with as few characters as the gold answer, R = -|length difference|.

The experiment of Qiu et al. 2025 (arXiv 2509.24372). Two sources: `facts`, a table of short
questions that the nano model knows, split 80/20 by a seed; and `paper`, the 2 training and 8 test
pairs of that paper. Pairs of your own are a task of `kind: jsonl` with `reward: length`.

The nano model was taught every fact in several styles (benchmarks/nano_training), its habit is the
full sentence. The last nine facts are the paper's questions, all but the capital of France, which
is the first. Limits: one answer per question, although a few questions admit several (a primary
color, say); facts that change with time (populations, office holders) are left out.
"""

from pathlib import Path
from typing import NamedTuple

from germline.config import Conciseness
from germline.graders.builtin_rewards import MAX_LENGTH_DIFFERENCE, grade_length
from germline.tasks.row_files import read_rows
from germline.tasks.splits import SplitTask, seeded_split
from germline.types import Example

MAX_NEW_TOKENS = 100
"""The paper's."""

_PAPER = Path(__file__).with_name("conciseness_pairs.jsonl")
_FACTS = Path(__file__).with_name("facts.jsonl")


class Fact(NamedTuple):
    """One question, its short answer, and a sentence that contains it."""

    question: str
    answer: str
    sentence: str


FACTS = tuple(Fact(**row) for _, row in read_rows(_FACTS, "task.data"))
"""Every fact, in a fixed order; questions are unique."""

Pair = tuple[str, str]
"""(question, answer)"""


class ConcisenessTask(SplitTask):
    """Short questions, short answers; see the module."""

    def __init__(self, config: Conciseness) -> None:
        limit = float(MAX_LENGTH_DIFFERENCE)
        super().__init__(
            config,
            grade_length,
            rubric={"length": 1.0, "length_difference": 0.0},
            floor={"length": -limit, "length_difference": limit},
            metric="length_difference",
            max_new_tokens=MAX_NEW_TOKENS,
        )
        self.metric_higher_is_better = False
        self._examples = self.by_split(
            _split(config), lambda index, pair: Example(index, *pair, config.sends_chats)
        )


def _split(config: Conciseness) -> tuple[list[Pair], list[Pair]]:
    if config.data == "paper":
        rows = [row for _, row in read_rows(_PAPER, "task.data")]
        train, test = (
            [(row["question"], row["answer"]) for row in rows if row["split"] == split]
            for split in ("train", "test")
        )
        return train, test
    pairs = [(fact.question, fact.answer) for fact in FACTS]
    return seeded_split(pairs, [question for question, _ in pairs], config.split_seed, "facts")
