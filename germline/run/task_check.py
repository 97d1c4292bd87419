"""Is a task fit to train on: what its reward makes of gold, empty and hostile answers.

`check_task` looks at everything and shows prompts as a model sees them; `settled` is the quick look
at the start of every run on a task of your own.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from germline.config import Config, CustomTask, TaskBase, load_config
from germline.graders.fuzz_texts import HOSTILE, fuzz_text
from germline.graders.pool import GraderPool
from germline.nano import NANO_DIR
from germline.protocols import Task
from germline.run.build_parts import RunParts, make_decoding, make_graders, make_task
from germline.tasks.jsonl import JsonlTask
from germline.tasks.python_file import PythonTask
from germline.types import Example, GermlineError, Grade

Verdict = Literal["ok", "warning", "wrong"]

GOLD, FUZZED, QUICK = 20, 30, 4
"""Gold and empty answers, mixed hostile texts, and answers looked at when a run starts."""

BROKEN = ("timeout", "the grader process died", "out of memory")
"""How failures begin that no text should cause; an exception is a grader's way to say no."""


@dataclass(frozen=True)
class TaskCheckRow:
    """One row of a check: what was tried, how often, the rewards it earned, and what to think."""

    tried: str
    count: int
    rewards: tuple[float, ...]
    verdict: Verdict
    remark: str


@dataclass(frozen=True)
class ShownPrompt:
    """A prompt as the model sees it, special tokens included, and how many tokens it has."""

    text: str
    tokens: int
    answer: str


@dataclass(frozen=True)
class TaskCheckReport:
    """Everything `check_task` found."""

    findings: tuple[TaskCheckRow, ...]
    prompts: tuple[ShownPrompt, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What must be mended before training."""
        return tuple(
            f"{one.tried}: {one.remark}" for one in self.findings if one.verdict == "wrong"
        )


def check_task(
    task: TaskBase | Mapping[str, Any] | Path | str,
    overrides: Sequence[str] = (),
    *,
    model: str = "nano",
    prompts: int = 10,
) -> TaskCheckReport:
    """Try a task's reward on gold, empty and hostile answers, and make prompts for a model.

    Args:
        task: a task file, a short name, or a section of a config.
        overrides: settings such as `task.template=...` and `graders.timeout_s=5`.
        model: whose tokenizer and chat template make the prompts.
        prompts: how many to show.

    Raises:
        GermlineError: the task or the tokenizer cannot be loaded.
    """
    section = task.model_dump() if isinstance(task, TaskBase) else task
    section = str(section) if isinstance(section, Path) else section
    config = load_config({"task": section, "model": model}, overrides)
    played = make_task(config.task)
    with make_graders(config, played) as graders:
        findings = [_examples(played), *_rewards(played, graders)]
    finding, shown = _prompts(played, config, prompts)
    return TaskCheckReport((*findings, finding), shown)


def verify_custom_task(parts: RunParts) -> RunParts:
    """Refuse a task of your own whose reward is broken, and note the digest of what it is made of.

    Raises:
        GermlineError: no gold answer can be graded, or a reward is none.
    """
    task, config = parts.task, parts.config
    if not isinstance(config.task, CustomTask) or not isinstance(task, PythonTask | JsonlTask):
        return parts
    examples = _spread(task.examples("train"), QUICK)
    texts = [example.answer or example.prompt for example in examples]
    grades = parts.graders.submit(texts, examples).result()
    if all(grade.failure for grade in grades):
        raise GermlineError(
            f"task.path: {config.task.path}: the reward fails on every answer that was tried, gold "
            f"ones included: {grades[0].failure}. `germline check task {config.task.path}` shows "
            "more"
        )
    section = config.task.model_copy(update={"digest": task.digest})
    return replace(parts, config=config.model_copy(update={"task": section}))


def _examples(task: Task) -> TaskCheckRow:
    train, test = task.examples("train"), task.examples("test")
    both = {one.prompt for one in train} & {one.prompt for one in test}
    remark = f"{len(train)} to train, {len(test)} held out"
    if both:
        remark += f"; {len(both)} prompts are in both, such as {_short(min(both))}"
    return TaskCheckRow("examples", len(train) + len(test), (), "warning" if both else "ok", remark)


def _rewards(task: Task, graders: GraderPool) -> list[TaskCheckRow]:
    """Grade every kind of answer."""
    some = [*_spread(task.examples("train"), GOLD // 2), *_spread(task.examples("test"), GOLD // 2)]
    golden = [example for example in some if example.answer]
    hostile = [*HOSTILE, *fuzz_text(FUZZED)]
    answers = [example.answer for example in golden]
    first, again, empty, strange = (
        # One by one, so that an error names its text and the others are still graded.
        [graders.submit([text], [example]) for text, example in zip(texts, examples, strict=True)]
        for texts, examples in (
            (answers, golden),
            (answers, golden),
            ([""] * len(some), some),
            (hostile, (some * len(hostile))[: len(hostile)]),
        )
    )
    gold = _judged("gold answers", first, answers, may_raise=False)
    nothing = _judged("empty answers", empty, [""] * len(some))
    return [
        _compared(gold, _judged("", again, answers), nothing),
        nothing,
        _tempting(gold, _judged("hostile answers", strange, hostile)),
    ]


def _judged(
    tried: str,
    futures: Sequence[Future[list[Grade]]],
    texts: Sequence[str],
    *,
    may_raise: bool = True,
) -> TaskCheckRow:
    """Say how grading went, whatever the rewards."""
    rewards: list[float] = []
    errors: list[str] = []
    broken: list[str] = []
    refused: list[str] = []
    for future, text in zip(futures, texts, strict=True):
        try:
            (grade,) = future.result()
        except GermlineError as error:
            errors.append(str(error))
            continue
        rewards.append(grade.reward)
        if grade.failure is not None:
            bad = not may_raise or grade.failure.startswith(BROKEN)
            (broken if bad else refused).append(f"{grade.failure} on {_short(text)}")
    verdict: Verdict = "wrong" if errors or broken else "ok"
    remark = ""
    if errors:
        remark = errors[0].removeprefix("graders: ")
    elif broken:
        remark = f"{len(broken)} cannot be graded: {broken[0]}"
    elif refused:
        remark = f"{len(refused)} earn the floor: {refused[0]}"
    return TaskCheckRow(tried, len(texts), tuple(rewards), verdict, remark)


def _compared(gold: TaskCheckRow, again: TaskCheckRow, empty: TaskCheckRow) -> TaskCheckRow:
    """Judge the rewards of gold answers beside those of empty ones."""
    if gold.verdict == "wrong":
        return gold
    if not gold.count:
        remark = "no example has an `answer`, so it cannot be seen whether a right one is rewarded"
        return replace(gold, verdict="warning", remark=remark)
    if gold.rewards != again.rewards:
        remark = "earn another reward the second time: a run could not be resumed to the same bits"
        return replace(gold, verdict="wrong", remark=remark)
    if empty.rewards and max(gold.rewards) <= max(empty.rewards):
        return replace(gold, verdict="wrong", remark="earn no more than empty ones")
    if min(gold.rewards) < max(gold.rewards):
        return replace(gold, remark="some earn less than others")
    return gold


def _tempting(gold: TaskCheckRow, hostile: TaskCheckRow) -> TaskCheckRow:
    """Warn where nonsense pays as much as a right answer."""
    if hostile.verdict != "ok" or not gold.rewards or not hostile.rewards:
        return hostile
    if max(hostile.rewards) < min(gold.rewards):
        return hostile
    remark = "one earns as much as a gold answer: members may find such a text too"
    return replace(hostile, verdict="warning", remark=remark)


def _prompts(
    task: Task, config: Config, count: int
) -> tuple[TaskCheckRow, tuple[ShownPrompt, ...]]:
    """Make every prompt as the engine does, and show some of them."""
    # Imported here: they bring torch, which the rest of a check can do without.
    from germline.engines.pretrained import load_tokenizer
    from germline.engines.prompt_batch import encode_prompt

    tokenizer, context = load_tokenizer(str(NANO_DIR) if config.model == "nano" else config.model)
    everything = [*task.examples("train"), *task.examples("test")]
    try:
        encoded = [encode_prompt(tokenizer, example) for example in everything]
    except GermlineError as error:
        return TaskCheckRow("prompts", len(everything), (), "wrong", str(error)), ()
    lengths = [len(ids) for ids in encoded]
    room = make_decoding(config, task).max_new_tokens
    remark = f"{min(lengths)} to {max(lengths)} tokens, and up to {room} new ones"
    verdict: Verdict = "ok"
    if context is not None and max(lengths) + room > context:
        verdict = "wrong"
        remark += (
            f", but the model takes {context}: shorten prompts, or set task.max_new_tokens="
            f"{max(1, context - max(lengths))} or less"
        )
    shown = tuple(
        ShownPrompt(tokenizer.decode(encoded[place]), lengths[place], everything[place].answer)
        for place in _places(len(task.examples("train")), count)
    )
    return TaskCheckRow("prompts", len(everything), (), verdict, remark), shown


def _spread(examples: Sequence[Example], count: int) -> list[Example]:
    """Take so many examples from everywhere in a split."""
    return [examples[place] for place in _places(len(examples), count)]


def _places(total: int, count: int) -> list[int]:
    """Spread so many different numbers over `range(total)`."""
    return [place * total // min(count, total) for place in range(min(count, total))]


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")
