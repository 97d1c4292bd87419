"""Check whether a task is fit for training: its reward on gold, wrong, empty and hostile answers.

`check_task` runs all checks and returns prompts as a model sees them; the short check at the start
of every run is in `germline.run.reward_check`.
"""

import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from germline.config import TaskBase, load_config
from germline.config.loader import read_task
from germline.episodes import first_message
from germline.graders.fuzz_texts import HOSTILE, fuzz_text
from germline.nano import model_source
from germline.protocols import EpisodeTask, Task
from germline.run.build_parts import make_decoding, make_graders
from germline.run.episode_checks import ExampleEpisode, check_tools, play_example
from germline.run.model_prompts import without_overlong
from germline.run.reward_check import (
    TaskCheckRow,
    Verdict,
    examples_row,
    places,
    short_text,
    spread,
    wrong_answers,
)
from germline.scorers.scored_graders import Graders
from germline.tasks import make_task
from germline.tasks.environment_task import EnvironmentTask
from germline.types import Decoding, Example, GermlineError, Grade

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NUMBER = re.compile(r"\d+")

GOLD, FUZZED = 20, 30
"""Numbers of gold and empty answers, and of mixed hostile texts."""


@dataclass(frozen=True)
class ShownPrompt:
    """A prompt as the model sees it, special tokens included, and its number of tokens."""

    text: str
    tokens: int
    answer: str


@dataclass(frozen=True)
class TaskCheckReport:
    """The result of `check_task`: one row per check, and some prompts as the model sees them.

    Of an environment, the prompt has the message with which it begins, and `episode` says how it
    goes on. `printed` is the file that holds what the reward printed, if anything.
    """

    findings: tuple[TaskCheckRow, ...]
    prompts: tuple[ShownPrompt, ...]
    printed: Path | None = None
    episode: ExampleEpisode | None = None

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
    """Try a task's reward on gold, wrong, empty and hostile answers, and make prompts for a model.

    Args:
        task: a task file, a short name, a section of a config, or the config itself.
        overrides: settings such as `task.template=...` and `graders.timeout_s=5`.
        model: whose tokenizer and chat template make the prompts.
        prompts: how many to show; of an environment, 0 or one with an example episode.

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
        findings = [examples_row(made), *_reward_rows(made, graders, tokenizer, decoding)]
        episode = _episode(made, graders) if prompts else None
    findings += check_tools(made, config, printed)
    encode = partial(encode_prompt, tokenizer, date=config.task.prompt_date)
    finding, shown = _prompts(made, encode, tokenizer, context, decoding, prompts, episode)
    findings.append(finding)
    wrote = printed.exists() and printed.stat().st_size > 0
    if not wrote:  # graders in this process leave the file
        printed.unlink(missing_ok=True)
    return TaskCheckReport(tuple(findings), shown, printed if wrote else None, episode)


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


def _reward_rows(
    task: Task, graders: Graders, tokenizer: "PreTrainedTokenizerBase", decoding: Decoding
) -> list[TaskCheckRow]:
    """Grade gold, wrong, empty and hostile answers, and compare their rewards."""
    some = [*spread(task.examples("train"), GOLD // 2), *spread(task.examples("test"), GOLD // 2)]
    golden = [example for example in some if example.answer]
    answers = [example.answer for example in golden]
    wrong = wrong_answers(answers)
    hostile = [*HOSTILE, *fuzz_text(FUZZED)]
    targets = (some * len(hostile))[: len(hostile)]
    gold = Answers.of(graders, "gold answers", answers, golden)
    tokens: list[list[int]] = [
        list(tokenizer(answer, add_special_tokens=False, verbose=False)["input_ids"])
        for answer in answers
    ]
    written = [_as_written(tokenizer, one, decoding) for one in tokens]
    again = Answers.of(graders, "gold answers", written, golden)
    empty = Answers.of(graders, "empty answers", [""] * len(some), some)
    gold_of_wrong = [place for _, place in wrong]
    mistaken = Answers.of(
        graders, "wrong answers", [text for text, _ in wrong], [golden[n] for n in gold_of_wrong]
    )
    strange = Answers.of(graders, "hostile answers", hostile, targets)
    # As the only reply, a gold answer earns nothing where a tool must be called.
    needs_tools = (
        isinstance(task, EnvironmentTask) and task.has_tools and not _is_better(gold, empty)
    )
    first = _gold_row(gold, again, empty, needs_tools=needs_tools)
    cut = sum(len(one) > decoding.max_new_tokens for one in tokens)
    if cut and first.verdict == "ok":
        remark = f"{cut} have more than max_new_tokens={decoding.max_new_tokens} tokens"
        first = replace(first, verdict="warning", remark=remark)
    rows = [first, empty.row()]
    if wrong:
        rows.append(_wrong_row(mistaken, gold, gold_of_wrong))
    is_known = first.verdict != "wrong" and not needs_tools
    rows.append(_hostile_row(strange, gold, targets) if is_known else strange.row())
    if isinstance(task, EpisodeTask):
        return rows
    if not golden and len(strange.failed) == len(hostile):
        # Nothing else shows that some answer can be graded; training refuses such a reward.
        remark = f"the reward fails on every answer that was tried: {strange.failed[0][1].failure}"
        return [*rows[:-1], replace(rows[-1], verdict="wrong", remark=remark)]
    rewards = [reward for row in rows for reward in row.rewards]
    is_constant = len(rewards) > 1 and min(rewards) == max(rewards)
    if is_constant and all(row.verdict != "wrong" for row in rows) and rows[-1].verdict == "ok":
        remark = (
            f"all {len(rewards)} texts that were tried earn {rewards[0]:g}, empty ones included: "
            "check that a better answer earns more, as a run learns from differences only"
        )
        return [*rows[:-1], replace(rows[-1], verdict="warning", remark=remark)]
    return rows


def _is_better(gold: Answers, empty: Answers) -> bool:
    """Whether some gold answer earns more than every empty one."""
    return not empty.rewards or max(gold.rewards, default=0.0) > max(empty.rewards)


def _gold_row(gold: Answers, again: Answers, empty: Answers, *, needs_tools: bool) -> TaskCheckRow:
    """Compare the rewards of gold answers with those of the same and of empty ones."""
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


def _wrong_row(wrong: Answers, gold: Answers, golden: Sequence[int]) -> TaskCheckRow:
    """Warn of wrong answers that earn more than the gold answers of their examples."""
    row = wrong.row()
    triples = [
        (text, grade.reward, right.reward)
        for text, grade, right in zip(
            wrong.texts, wrong.grades, [gold.grades[place] for place in golden], strict=True
        )
        if grade and right and grade.reward > right.reward
    ]
    if not triples or row.verdict == "wrong" or gold.failed:
        return row
    text, reward, right = triples[0]
    remark = (
        f"{len(triples)} of {len(golden)} earn more than the gold answer of their example, such as "
        f"{short_text(text)} ({reward:g} instead of {right:g}): members learn to write such answers"
    )
    return replace(row, verdict="warning", remark=remark)


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


def _episode(task: Task, graders: Graders) -> ExampleEpisode | None:
    if not isinstance(task, EpisodeTask):
        return None
    try:
        return play_example(task.examples("train")[0], task.max_turns, graders)
    except GermlineError:  # the check of empty answers reports it
        return None


def _prompts(
    task: Task,
    encode: Callable[[Example], list[int]],
    tokenizer: "PreTrainedTokenizerBase",
    context: int | None,
    decoding: Decoding,
    count: int,
    episode: ExampleEpisode | None,
) -> tuple[TaskCheckRow, tuple[ShownPrompt, ...]]:
    """Encode every prompt as the engine does, and decode some of them for display."""
    from germline.engines.context_length import context_remedy

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
        remark += (
            f", but the model's context has {context}: {context_remedy(max(lengths), context)}"
        )
    shown_at = places(len(task.examples("train")), count)
    if episode is not None:
        first = first_message(everything[0], episode.begin)
        encoded[0], shown_at = encode(first), [0]
    shown = tuple(
        ShownPrompt(tokenizer.decode(encoded[place]), len(encoded[place]), everything[place].answer)
        for place in shown_at
    )
    return TaskCheckRow("prompts", len(everything), (), verdict, remark), shown


def _as_written(
    tokenizer: "PreTrainedTokenizerBase", tokens: Sequence[int], decoding: Decoding
) -> str:
    """Return the text that the reward gets when a model writes these tokens."""
    from germline.engines.rows_in_progress import Detokenizer, RowsInProgress  # imports torch: slow

    end = tokenizer.eos_token_id
    ends = frozenset() if end is None else frozenset([int(end)])
    row = RowsInProgress(Detokenizer(tokenizer, ends), ends, decoding, 1)
    for token in tokens:
        row.write([0], [token])
    return row.completion(0, 0).text
