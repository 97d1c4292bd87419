"""Check the reward of a task on gold, empty and hostile answers."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from germline.graders.fuzz_texts import HOSTILE, fuzz_text
from germline.protocols import EpisodeTask, Task
from germline.run.preflight import short_text, spread
from germline.scorers.scored_graders import Graders
from germline.tasks.environment_task import EnvironmentTask
from germline.types import Decoding, Example, GermlineError, Grade

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NUMBER = re.compile(r"\d+")

GOLD, FUZZED = 20, 30
"""Numbers of gold and empty answers, and of mixed hostile texts."""

Verdict = Literal["ok", "warning", "wrong"]


@dataclass(frozen=True)
class TaskCheckRow:
    """One row of a check: what was tried, how often, the rewards it earned, and the verdict.

    Attributes:
        text: the whole of the hostile text that earns as much as a gold answer; None for any
            other row. The remark shows its beginning.
    """

    tried: str
    count: int
    rewards: tuple[float, ...]
    verdict: Verdict
    remark: str
    text: str | None = None


@dataclass(frozen=True)
class Answers:
    """Texts of one kind and their grades: None, and an error, where the reward is at fault."""

    kind: str
    texts: tuple[str, ...]
    grades: tuple[Grade | None, ...]
    error: str | None

    @classmethod
    def of(
        cls, graders: Graders, kind: str, texts: Sequence[str], examples: Sequence[Example]
    ) -> "Answers":
        """Grade texts one by one, so that an error on one leaves the grades of the others."""
        pairs = zip(texts, examples, strict=True)
        futures = [graders.submit([text], [example]) for text, example in pairs]
        grades: list[Grade | None] = []
        error = None
        for future in futures:
            try:
                grades += future.result()
            except GermlineError as found:
                grades.append(None)
                error = error or str(found)
        return cls(kind, tuple(texts), tuple(grades), error)

    @property
    def rewards(self) -> tuple[float, ...]:
        """The rewards of the texts that have a grade."""
        return tuple(grade.reward for grade in self.grades if grade)

    @property
    def failed(self) -> list[tuple[str, Grade]]:
        """The texts whose grading failed, and their grades."""
        pairs = zip(self.texts, self.grades, strict=True)
        return [(text, grade) for text, grade in pairs if grade and grade.failure is not None]

    def row(self, *, may_fail: bool = True) -> TaskCheckRow:
        """Report errors and failures; with `may_fail`, one that earns the floor is a warning."""
        row = TaskCheckRow(self.kind, len(self.texts), self.rewards, "ok", "")
        if self.error:
            return replace(row, verdict="wrong", remark=self.error.removeprefix("graders: "))
        missing = [one for one in self.failed if math.isnan(one[1].reward)]
        if failed := missing or self.failed:
            text, grade = failed[0]
            is_wrong = bool(missing) or not may_fail
            what = "cannot be graded" if is_wrong else "fail, which earns the floor"
            remark = f"{len(failed)} {what}: {grade.failure} on {short_text(text)}"
            return replace(row, verdict="wrong" if is_wrong else "warning", remark=remark)
        return row


def reward_rows(
    task: Task, graders: Graders, tokenizer: "PreTrainedTokenizerBase", decoding: Decoding
) -> list[TaskCheckRow]:
    """Grade gold, empty and hostile answers, and compare their rewards."""
    some = [*spread(task.examples("train"), GOLD // 2), *spread(task.examples("test"), GOLD // 2)]
    golden = [example for example in some if example.answer]
    answers = [example.answer for example in golden]
    tokens: list[list[int]] = [
        tokenizer(answer, add_special_tokens=False, verbose=False)["input_ids"]
        for answer in answers
    ]
    written = _as_written(tokenizer, tokens, decoding)
    hostile = [*HOSTILE, *fuzz_text(FUZZED)]
    targets = (some * len(hostile))[: len(hostile)]
    graded = partial(Answers.of, graders)
    gold = graded("gold answers", answers, golden)
    again = graded("gold answers", written, golden)
    empty = graded("empty answers", [""] * len(some), some)
    strange = graded("hostile answers", hostile, targets)
    # As the only reply, a gold answer earns nothing where a tool must be called.
    has_tools = isinstance(task, EnvironmentTask) and task.has_tools
    needs_tools = has_tools and not _is_better(gold, empty)
    first = _gold_row(gold, again, empty, needs_tools=needs_tools)
    cut = sum(len(one) > decoding.max_new_tokens for one in tokens)
    if cut and first.verdict == "ok":
        remark = f"{cut} have more than max_new_tokens={decoding.max_new_tokens} tokens"
        first = replace(first, verdict="warning", remark=remark)
    rows = [first, empty.row()]
    is_known = first.verdict != "wrong" and not needs_tools
    last = _hostile_row(strange, gold, targets) if is_known else strange.row()
    if not isinstance(task, EpisodeTask):
        last = _without_gold(last, strange, rows)
    return [*rows, last]


def _is_better(gold: Answers, empty: Answers) -> bool:
    """Whether some gold answer earns more than every empty one."""
    return not empty.rewards or max(gold.rewards, default=0.0) > max(empty.rewards)


def _gold_row(gold: Answers, again: Answers, empty: Answers, *, needs_tools: bool) -> TaskCheckRow:
    """Compare the rewards of gold answers with those of the same, as written, and of empty ones."""
    row = gold.row(may_fail=False)
    if row.verdict == "wrong":
        return row
    if not gold.texts:
        remark = (
            "no example has an `answer`, so the reward of a right one cannot be checked: name the "
            "column that holds the answers, such as task.columns={answer: solution}"
        )
        return replace(row, verdict="warning", remark=remark)
    if again.error:  # the second time
        return again.row(may_fail=False)
    lost = []
    for text, written, first, second in zip(
        gold.texts, again.texts, gold.rewards, again.rewards, strict=True
    ):
        if text != written and not second >= first:
            lost.append((text, written))
        elif text == written and second != first:
            remark = (
                f"the reward is not deterministic: {first:g} and then {second:g} for the same "
                "answer; compute it from the completion and the row alone, or a run cannot be "
                "resumed"
            )
            return replace(row, verdict="wrong", remark=remark)
    if lost:
        remark = (
            f"{len(lost)} of {len(gold.texts)} earn less as a model can write them: "
            f"{short_text(lost[0][0])} becomes {short_text(lost[0][1])}, as task.stop cuts it or "
            "the tokenizer has no such text"
        )
        every = len(lost) == len(gold.texts)
        return replace(row, verdict="wrong" if every else "warning", remark=remark)
    if needs_tools:
        remark = "earn no more than empty ones as the only reply, without a tool call"
        return replace(row, remark=remark)
    if not _is_better(gold, empty):
        return replace(row, verdict="wrong", remark="earn no more than empty ones")
    is_mixed = min(gold.rewards) < max(gold.rewards)
    return replace(row, remark="some earn less than others" if is_mixed else "")


def _hostile_row(hostile: Answers, gold: Answers, targets: Sequence[Example]) -> TaskCheckRow:
    """Warn when a hostile text earns as much as a right answer, and name the text.

    A text whose last number is the gold answer of its example may be right by chance.
    """
    row = hostile.row()
    if row.verdict == "wrong" or not gold.rewards or not hostile.rewards:
        return row
    best = max(hostile.rewards)
    winners = [
        text
        for text, reward, target in zip(hostile.texts, hostile.rewards, targets, strict=True)
        if reward == best and NUMBER.findall(text)[-1:] != [target.answer]
    ]
    if best < min(gold.rewards) or not winners:
        return row
    shortest = min(winners, key=len)
    remark = (
        f"{len(winners)} of {len(targets)} earn {best:g}, as much as a gold answer, such as "
        f"{short_text(shortest)}: members may learn to write such a text"
    )
    return replace(row, verdict="warning", remark=remark, text=shortest)


def _without_gold(row: TaskCheckRow, hostile: Answers, others: list[TaskCheckRow]) -> TaskCheckRow:
    """Judge a reward by whether it fails on, or is the same for, every text that was tried."""
    if not others[0].count and len(hostile.failed) == len(hostile.texts):
        # Nothing else shows that some answer can be graded; training refuses such a reward.
        remark = f"the reward fails on every answer that was tried: {hostile.failed[0][1].failure}"
        return replace(row, verdict="wrong", remark=remark)
    rewards = [reward for one in (*others, row) for reward in one.rewards]
    is_fine = row.verdict == "ok" and all(one.verdict != "wrong" for one in others)
    if is_fine and len(rewards) > 1 and min(rewards) == max(rewards):
        remark = (
            f"all {len(rewards)} texts that were tried earn {rewards[0]:g}, empty ones included: "
            "check that a better answer earns more, as a run learns from differences only"
        )
        return replace(row, verdict="warning", remark=remark)
    return row


def _as_written(
    tokenizer: "PreTrainedTokenizerBase", answers: Sequence[Sequence[int]], decoding: Decoding
) -> list[str]:
    """Return the texts that the reward gets when a model writes these tokens."""
    from germline.engines.rows_in_progress import CompletionDecoder  # imports torch: slow

    end = tokenizer.eos_token_id
    decoder = CompletionDecoder(tokenizer, frozenset() if end is None else frozenset([int(end)]))
    longest = max(map(len, answers), default=0)  # answers that are too long are another row's
    whole = replace(decoding, max_new_tokens=longest)
    return [decoder.completion(tokens, 0, whole).text for tokens in answers]
