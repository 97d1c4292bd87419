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
from germline.run.preflight import distinct, places, prompts_in_both, short_text, spread
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


class Answers:
    """Texts of one kind, graded one by one: an error on one leaves the grades of the others.

    Attributes:
        rewards: of the texts that have a grade.
        failed: the texts whose grading failed, and their grades.
        error: the first error, where the reward is at fault.
    """

    def __init__(
        self, graders: Graders, kind: str, texts: Sequence[str], examples: Sequence[Example]
    ) -> None:
        pairs = zip(texts, examples, strict=True)
        futures = [graders.submit([text], [example]) for text, example in pairs]
        graded: list[tuple[str, Grade]] = []
        self.error: str | None = None
        for text, future in zip(texts, futures, strict=True):
            try:
                graded.append((text, future.result()[0]))
            except GermlineError as error:
                self.error = self.error or str(error)
        self.kind, self.texts = kind, tuple(texts)
        self.rewards = tuple(grade.reward for _, grade in graded)
        self.failed = [one for one in graded if one[1].failure is not None]

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
        for place in places(len(task.examples("train")), count)
    )
    return TaskCheckRow("prompts", len(everything), (), verdict, remark), shown


def reward_rows(
    task: Task, graders: Graders, tokenizer: "PreTrainedTokenizerBase", decoding: Decoding
) -> list[TaskCheckRow]:
    """Grade gold, empty and hostile answers, and compare their rewards.

    Gold answers are graded as a model can write them: `task.stop` may cut them.
    """
    some = [*spread(task.examples("train"), GOLD // 2), *spread(task.examples("test"), GOLD // 2)]
    golden = [example for example in some if example.answer]
    answers = [example.answer for example in golden]
    tokens: list[list[int]] = [
        tokenizer(answer, add_special_tokens=False, verbose=False)["input_ids"]
        for answer in answers
    ]
    written = _as_written(tokenizer, tokens, decoding)
    hostile = [*HOSTILE]
    targets = (some * len(hostile))[: len(hostile)]
    graded = partial(Answers, graders)
    gold, again = (graded("gold answers", written, golden) for _ in range(2))
    empty = graded("empty answers", [""] * len(some), some)
    strange = graded("hostile answers", hostile, targets)
    # As the only reply, a gold answer earns nothing where a tool must be called.
    has_tools = isinstance(task, EnvironmentTask) and task.has_tools
    is_better = not empty.rewards or max(gold.rewards, default=0.0) > max(empty.rewards)
    needs_tools = has_tools and not is_better
    first = _gold_row(gold, again, is_better=is_better, needs_tools=needs_tools)
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


def _gold_row(gold: Answers, again: Answers, *, is_better: bool, needs_tools: bool) -> TaskCheckRow:
    """Compare the rewards of gold answers with those of the same, graded again.

    Some gold answer should be better than every empty one, unless it needs tools.
    """
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
    for first, second in zip(gold.rewards, again.rewards, strict=True):
        if second != first:
            remark = (
                f"the reward is not deterministic: {first:g} and then {second:g} for the same "
                "answer; compute it from the completion and the row alone, or a run cannot be "
                "resumed"
            )
            return replace(row, verdict="wrong", remark=remark)
    if needs_tools:
        remark = "earn no more than empty ones as the only reply, without a tool call"
        return replace(row, remark=remark)
    if not is_better:
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
    from germline.engines.rows_in_progress import Detokenizer, cut_completion  # slow: torch

    end = tokenizer.eos_token_id
    detokenize = Detokenizer(tokenizer, frozenset() if end is None else frozenset([int(end)]))
    longest = max(map(len, answers), default=0)  # answers that are too long are another row's
    whole = replace(decoding, max_new_tokens=longest)
    return [cut_completion(detokenize, tokens, 0, whole).text for tokens in answers]
