"""Check whether a task is fit for training: its reward and prompts, as `germline check`.

The reward is tried on gold, empty and hostile answers.

At the start of every run, `germline.run.preflight` tries a few answers only.
"""

import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from germline.config import TaskBase, load_config
from germline.config.config_files import model_source
from germline.config.loader import read_task
from germline.graders.fuzz_texts import HOSTILE
from germline.protocols import EpisodeTask, Task
from germline.run.build_parts import make_decoding, make_graders
from germline.run.model_prompts import without_overlong
from germline.run.preflight import distinct, prompts_in_both, short_text, spread
from germline.scorers.scored_graders import Graders
from germline.tasks import make_task
from germline.tasks.environment_task import EnvironmentTask
from germline.types import Decoding, Example, GermlineError, Grade

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


NUMBER = re.compile(r"\d+")

GOLD = 20
"""Number of gold and of empty answers."""

Verdict = Literal["ok", "warning", "wrong"]


@dataclass(frozen=True)
class TaskCheckRow:
    """One row of a check: what was tried, how often, the rewards it earned, and the verdict."""

    tried: str
    count: int
    rewards: tuple[float, ...]
    verdict: Verdict
    remark: str


@dataclass(frozen=True)
class Answers:
    """Texts of one kind, their grades, and the row that reports them.

    Where the reward is at fault, there are no grades.
    """

    texts: Sequence[str]
    grades: Sequence[Grade]
    row: TaskCheckRow

    @classmethod
    def graded(
        cls,
        graders: Graders,
        kind: str,
        texts: Sequence[str],
        examples: Sequence[Example],
        *,
        may_fail: bool = True,
    ) -> "Answers":
        """Grade texts; with `may_fail`, one that fails, and so earns the floor, is a warning."""
        row = TaskCheckRow(kind, len(texts), (), "ok", "")
        try:
            grades = graders.submit(texts, examples).result()
        except GermlineError as error:
            remark = str(error).removeprefix("graders: ")
            return cls(texts, (), replace(row, verdict="wrong", remark=remark))
        row = replace(row, rewards=tuple(grade.reward for grade in grades))
        failed = [one for one in zip(texts, grades, strict=True) if one[1].failure is not None]
        missing = [one for one in failed if math.isnan(one[1].reward)]
        if shown := missing or failed:
            text, grade = shown[0]
            is_wrong = bool(missing) or not may_fail
            what = "cannot be graded" if is_wrong else "fail, which earns the floor"
            remark = f"{len(shown)} {what}: {grade.failure} on {short_text(text)}"
            row = replace(row, verdict="wrong" if is_wrong else "warning", remark=remark)
        return cls(texts, grades, row)


@dataclass(frozen=True)
class ShownPrompt:
    """A prompt as the model sees it, special tokens included, and its number of tokens."""

    text: str
    tokens: int
    answer: str


@dataclass(frozen=True)
class TaskCheckReport:
    """The result of `check_task`: one row per check, and some prompts as the model sees them.

    `printed` is the file that holds what the reward printed, if anything.
    """

    findings: tuple[TaskCheckRow, ...]
    prompts: tuple[ShownPrompt, ...]
    printed: Path | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems that must be fixed before training."""
        return tuple(
            f"{finding.tried}: {finding.remark}"
            for finding in self.findings
            if finding.verdict == "wrong"
        )


def check_task(
    task: TaskBase | Mapping[str, Any] | Path | str,
    overrides: Sequence[str] = (),
    *,
    model: str = "nano",
    prompts: int = 3,
) -> TaskCheckReport:
    """Try a task's reward on gold, empty and hostile answers, and make prompts for a model.

    Args:
        task: a task file, a short name, a section of a config, or the config itself.
        overrides: settings such as `task.template=...` and `graders.timeout_s=5`.
        model: whose tokenizer and chat template make the prompts.
        prompts: how many to show.

    Raises:
        GermlineError: the task or the tokenizer cannot be loaded.
    """
    section = task.model_dump() if isinstance(task, TaskBase) else task
    section = read_task(section) if isinstance(section, str | Path) else section
    config = load_config({"task": section, "model": model}, overrides)
    made = without_overlong(config, make_task(config.task))
    # Imported here: it imports torch, which loading a task does not need.
    from germline.engines.pretrained import load_tokenizer
    from germline.engines.prompt_batch import encode_prompt

    tokenizer, context = load_tokenizer(model_source(config.model))
    decoding = make_decoding(config, made)
    with tempfile.NamedTemporaryFile(prefix="germline-check-", suffix=".log", delete=False) as file:
        printed = Path(file.name)
    with make_graders(config, made) as graders:
        graders.redirect_output(printed)
        findings = [_examples_row(made), *reward_rows(made, graders, tokenizer, decoding)]
    encode = partial(encode_prompt, tokenizer, date=config.task.prompt_date)
    finding, shown = _prompts(made, encode, tokenizer, context, decoding, prompts)
    findings.append(finding)
    wrote = printed.exists() and printed.stat().st_size > 0
    if not wrote:  # graders in this process leave the file
        printed.unlink(missing_ok=True)
    return TaskCheckReport(tuple(findings), shown, printed if wrote else None)


def _examples_row(task: Task) -> TaskCheckRow:
    """Count the examples of a task, and warn of prompts that are in both splits."""
    train, test = task.examples("train"), task.examples("test")

    def counted(split: Sequence[Example], name: str) -> str:
        different = len(distinct(task, split))
        some = "" if different == len(split) else f" (different prompts: {different})"
        return f"{len(split)} {name}{some}"

    both = prompts_in_both(task)
    remark = f"{counted(train, 'to train')}, {counted(test, 'held out')}"
    if both:
        remark += f"; prompts in both: {len(both)}, such as {short_text(both[0])}"
    return TaskCheckRow("examples", len(train) + len(test), (), "warning" if both else "ok", remark)


def _prompts(
    task: Task,
    encode: Callable[[Example], list[int]],
    tokenizer: "PreTrainedTokenizerBase",
    context: int | None,
    decoding: Decoding,
    count: int,
) -> tuple[TaskCheckRow, tuple[ShownPrompt, ...]]:
    """Encode every prompt as the engine does, and decode some of them for display."""
    from germline.engines.prompt_batch import CONTEXT_REMEDY

    everything = [*task.examples("train"), *task.examples("test")]
    try:
        encoded = [*map(encode, everything)]
    except GermlineError as error:
        return TaskCheckRow("prompts", len(everything), (), "wrong", str(error)), ()
    lengths = [len(ids) for ids in encoded]
    new = decoding.max_new_tokens
    turns = f" in each of up to {task.max_turns} turns" if isinstance(task, EpisodeTask) else ""
    some = " to ".join(map(str, dict.fromkeys((min(lengths), max(lengths)))))
    remark = f"{some} tokens, and up to {new} new ones{turns}"
    verdict: Verdict = "ok"
    if context is not None and max(lengths) + new > context:
        verdict = "wrong"
        remark += f", but the model's context has {context}: {CONTEXT_REMEDY}"
    shown = tuple(
        ShownPrompt(tokenizer.decode(encoded[place]), len(encoded[place]), everything[place].answer)
        for place in spread(range(len(task.examples("train"))), count)
    )
    return TaskCheckRow("prompts", len(everything), (), verdict, remark), shown


def reward_rows(
    task: Task, graders: Graders, tokenizer: "PreTrainedTokenizerBase", decoding: Decoding
) -> list[TaskCheckRow]:
    """Grade gold, empty and hostile answers, and compare their rewards.

    Gold answers are graded again as a model can write them: `task.stop` may cut them.
    """
    some = [*spread(task.examples("train"), GOLD // 2), *spread(task.examples("test"), GOLD // 2)]
    # As the only reply, a gold answer may earn nothing where a tool must be called.
    has_tools = isinstance(task, EnvironmentTask) and task.has_tools
    golden = [example for example in some if example.answer and not has_tools]
    answers = [example.answer for example in golden]
    tokens: list[list[int]] = [
        tokenizer(answer, add_special_tokens=False, verbose=False)["input_ids"]
        for answer in answers
    ]
    written = _as_written(tokenizer, tokens, decoding)
    hostile = [*HOSTILE]
    targets = (some * len(hostile))[: len(hostile)]
    graded = partial(Answers.graded, graders)
    gold, again = (
        graded("gold answers", texts, golden, may_fail=False) for texts in (answers, written)
    )
    empty = graded("empty answers", [""] * len(some), some)
    strange = graded("hostile answers", hostile, targets)
    if has_tools:
        first = replace(gold.row, remark="not tried: each is the only reply, without a tool call")
    else:
        first = _gold_row(gold, again, empty)
    cut = sum(len(one) > decoding.max_new_tokens for one in tokens)
    if cut and first.verdict == "ok":
        remark = f"{cut} have more than max_new_tokens={decoding.max_new_tokens} tokens"
        first = replace(first, verdict="warning", remark=remark)
    last = strange.row
    if golden and first.verdict != "wrong":
        last = _hostile_row(strange, gold, targets)
    elif not golden and not isinstance(task, EpisodeTask):
        last = _without_gold(strange, empty)
    return [first, empty.row, last]


def _gold_row(gold: Answers, again: Answers, empty: Answers) -> TaskCheckRow:
    """Compare the rewards of gold answers with those of the same, graded again, and of empty ones.

    Some gold answer should be better than every empty one.
    """
    row = gold.row
    if not gold.texts:
        remark = (
            "no example has an `answer`, so the reward of a right one cannot be checked: name the "
            "column that holds the answers, such as task.columns={answer: solution}"
        )
        return replace(row, verdict="warning", remark=remark)
    if row.verdict == "wrong":
        return row
    if again.row.verdict == "wrong":  # the second time
        return again.row
    graded = [*zip(gold.texts, again.texts, gold.row.rewards, again.row.rewards, strict=True)]
    for text, written, first, second in graded:
        if text == written and second != first:
            remark = (
                f"the reward is not deterministic: {first:g} and then {second:g} for the same "
                "answer; compute it from the completion and the row alone, or a run cannot be "
                "resumed"
            )
            return replace(row, verdict="wrong", remark=remark)
    lost = [one for one in graded if one[0] != one[1] and not one[3] >= one[2]]
    if lost:
        remark = (
            f"{len(lost)} of {len(gold.texts)} earn less as a model can write them: "
            f"{short_text(lost[0][0])} becomes {short_text(lost[0][1])}, as task.stop cuts it or "
            "the tokenizer has no such text"
        )
        every = len(lost) == len(gold.texts)
        return replace(row, verdict="wrong" if every else "warning", remark=remark)
    if empty.row.rewards and max(gold.row.rewards) <= max(empty.row.rewards):
        return replace(row, verdict="wrong", remark="earn no more than empty ones")
    is_mixed = min(gold.row.rewards) < max(gold.row.rewards)
    return replace(row, remark="some earn less than others" if is_mixed else "")


def _hostile_row(hostile: Answers, gold: Answers, targets: Sequence[Example]) -> TaskCheckRow:
    """Warn when a hostile text earns as much as a right answer, and name the text.

    A text whose last number is the gold answer of its example may be right by chance.
    """
    row = hostile.row
    if row.verdict == "wrong":
        return row
    best = max(hostile.row.rewards)
    winners = [
        text
        for text, reward, target in zip(hostile.texts, hostile.row.rewards, targets, strict=True)
        if reward == best and NUMBER.findall(text)[-1:] != [target.answer]
    ]
    if best < min(gold.row.rewards) or not winners:
        return row
    remark = (
        f"{len(winners)} of {len(targets)} earn {best:g}, as much as a gold answer, such as "
        f"{short_text(min(winners, key=len))}: members may learn to write such a text"
    )
    return replace(row, verdict="warning", remark=remark)


def _without_gold(hostile: Answers, empty: Answers) -> TaskCheckRow:
    """Judge a reward by whether it fails on, or is the same for, every text that was tried."""
    row, rewards = hostile.row, hostile.row.rewards + empty.row.rewards
    failures = [grade.failure for grade in hostile.grades]
    if failures and all(failures):
        # Nothing else shows that some answer can be graded; training refuses such a reward.
        remark = f"the reward fails on every answer that was tried: {failures[0]}"
        return replace(row, verdict="wrong", remark=remark)
    if row.verdict == "ok" and min(rewards) == max(rewards):
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
    from germline.engines.rows_in_progress import Detokenizer, cut_completion  # slow: torch

    end = tokenizer.eos_token_id
    detokenize = Detokenizer(tokenizer, frozenset() if end is None else frozenset([int(end)]))
    longest = max(map(len, answers), default=0)  # answers that are too long are another row's
    whole = replace(decoding, max_new_tokens=longest)
    return [cut_completion(detokenize, tokens, 0, whole).text for tokens in answers]
