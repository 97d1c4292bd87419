"""Check whether a task is fit for training: its reward on gold, wrong, empty and hostile answers.

`check_task` runs all checks and returns prompts as a model sees them; the short check at the start
of every run is in `germline.run.reward_check`.
"""

import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from germline.config import Config, TaskBase, load_config
from germline.config.loader import read_task
from germline.episodes import first_message
from germline.graders.fuzz_texts import HOSTILE, fuzz_text
from germline.nano import NANO_DIR
from germline.protocols import EpisodeTask, Task
from germline.run.build_parts import make_decoding, make_graders
from germline.run.episode_checks import ExampleEpisode, check_tools, missing_reward, play_example
from germline.run.task_check_row import (
    TaskCheckRow,
    Verdict,
    examples_row,
    short_text,
    warn_of_equal_rewards,
)
from germline.run.tried_answers import QUICK, places, spread, wrong_answers
from germline.scorers.scored_graders import Graders
from germline.tasks import make_task
from germline.tasks.environment_task import EnvironmentTask
from germline.types import GermlineError, Grade

NUMBER = re.compile(r"\d+")

GOLD, FUZZED = 20, 30
"""Numbers of gold and empty answers, and of mixed hostile texts."""

BROKEN = ("timeout", "the grader process died", "out of memory")
"""Beginnings of failures that no text should cause; by an exception a grader may refuse a text."""

BELOW_FLOOR = "worse than its floor"
"""Words of the error about a reward below its floor."""


@dataclass(frozen=True)
class ShownPrompt:
    """A prompt as the model sees it, special tokens included, and its number of tokens."""

    text: str
    tokens: int
    answer: str


@dataclass(frozen=True)
class TaskCheckReport:
    """The result of `check_task`.

    Attributes:
        findings: one row per check.
        prompts: some prompts, as the model sees them; of an environment, one with the message with
            which the environment begins.
        episode: how the environment goes on after this prompt; None for any other task.
        printed: the file that holds what the reward printed; None when it printed nothing.
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
    made = make_task(config.task)
    with tempfile.NamedTemporaryFile(prefix="germline-check-", suffix=".log", delete=False) as file:
        printed = Path(file.name)
    with make_graders(config, made) as graders:
        graders.redirect_output(printed)
        findings = [examples_row(made), *_rewards(made, graders)]
        examples = spread(made.examples("train"), QUICK)
        if problem := missing_reward(made, config, graders, examples):
            findings.append(TaskCheckRow("episodes", len(examples), (), "warning", problem))
        episode = _episode(made, graders) if prompts else None
    findings += check_tools(made, config, printed)
    finding, shown = _prompts(made, config, prompts, episode)
    findings.append(finding)
    wrote = printed.exists() and printed.stat().st_size > 0
    if not wrote:  # graders in this process leave the file
        printed.unlink(missing_ok=True)
    return TaskCheckReport(tuple(findings), shown, printed if wrote else None, episode)


def _rewards(task: Task, graders: Graders) -> list[TaskCheckRow]:
    """Grade gold, wrong, empty and hostile answers."""
    some = [*spread(task.examples("train"), GOLD // 2), *spread(task.examples("test"), GOLD // 2)]
    golden = [example for example in some if example.answer]
    hostile = [*HOSTILE, *fuzz_text(FUZZED)]
    targets = (some * len(hostile))[: len(hostile)]
    answers = [example.answer for example in golden]
    wrong = wrong_answers(answers)
    mistaken = [text for text, _ in wrong]
    first, again, empty, other, strange = (
        # One text per call, so that an error names its text and the other texts are still graded.
        [graders.submit([text], [example]) for text, example in zip(texts, examples, strict=True)]
        for texts, examples in (
            (answers, golden),
            (answers, golden),
            ([""] * len(some), some),
            (mistaken, [golden[place] for _, place in wrong]),
            (hostile, targets),
        )
    )
    has_tools = isinstance(task, EnvironmentTask) and task.has_tools
    gold = _judged("gold answers", first, answers, may_raise=False)
    nothing = _judged("empty answers", empty, [""] * len(some), told=gold.remark)
    told = gold.remark + nothing.remark * (nothing.verdict == "wrong")
    false = _judged("wrong answers", other, mistaken, told=told)
    # With no gold answer, nothing else shows that some answer can be graded; training refuses it.
    needs_one = not golden and not isinstance(task, EpisodeTask)
    tried = _judged(
        "hostile answers", strange, hostile, needs_one=needs_one, told=told + false.remark
    )
    rows = [
        _compared(gold, _judged("", again, answers), nothing, has_tools=has_tools),
        nothing,
        *([_exceeding(gold, false, wrong)] if wrong else []),
        # As the only reply, a gold answer earns nothing where a tool must be called.
        tried
        if has_tools and not _is_better(gold, nothing)
        else _tempting(gold, tried, hostile, [one.answer for one in targets]),
    ]
    return rows if isinstance(task, EpisodeTask) else warn_of_equal_rewards(rows)


def _judged(
    tried: str,
    futures: Sequence[Future[list[Grade]]],
    texts: Sequence[str],
    *,
    may_raise: bool = True,
    needs_one: bool = False,
    told: str = "",
) -> TaskCheckRow:
    """Report failures; `needs_one` asks for a text that is graded; what `told` says is cut."""
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
            is_missing = math.isnan(grade.reward)
            bad = not may_raise or is_missing or grade.failure.startswith(BROKEN)
            found = f"{grade.failure} on {short_text(text)}"
            (broken if bad else refused).append("as above" if grade.failure in told else found)
    verdict: Verdict = "wrong" if errors or broken else "ok"
    remark = ""
    if errors:
        remark = errors[0].removeprefix("graders: ")
        if remark in told:
            remark = "as above"
        elif BELOW_FLOOR in remark and BELOW_FLOOR in told:  # the advice is long, and the same
            remark = f"{remark.partition(BELOW_FLOOR)[0]}{BELOW_FLOOR}, as above"
    elif broken:
        more_time = "; graders.timeout_s allows more time" * broken[0].startswith("timeout")
        remark = f"{len(broken)} cannot be graded: {broken[0]}{more_time}"
    elif refused and needs_one and len(refused) == len(texts):
        verdict = "wrong"
        remark = f"the reward fails on every answer that was tried: {refused[0]}"
    elif refused:
        remark = f"{len(refused)} raise an exception, which earns the floor: {refused[0]}"
    return TaskCheckRow(tried, len(texts), tuple(rewards), verdict, remark)


def _compared(
    gold: TaskCheckRow, again: TaskCheckRow, empty: TaskCheckRow, *, has_tools: bool
) -> TaskCheckRow:
    """Compare the rewards of gold answers with those of empty ones.

    Where tools earn the reward, a gold answer that is the only reply may earn nothing.
    """
    if gold.verdict == "wrong":
        return gold
    if not gold.count:
        remark = (
            "no example has an `answer`, so the reward of a right one cannot be checked: name the "
            "column that holds the answers, such as task.columns={answer: solution}"
        )
        return replace(gold, verdict="warning", remark=remark)
    if gold.rewards != again.rewards:
        first, second = next(
            pair for pair in zip(gold.rewards, again.rewards, strict=True) if pair[0] != pair[1]
        )
        remark = (
            f"the reward is not deterministic: {first:g} and then {second:g} for the same answer; "
            "compute it from the completion and the row alone, or a run cannot be resumed"
        )
        return replace(gold, verdict="wrong", remark=remark)
    if not _is_better(gold, empty):
        if has_tools:
            remark = "earn no more than empty ones as the only reply, without a tool call"
            return replace(gold, remark=remark)
        return replace(gold, verdict="wrong", remark="earn no more than empty ones")
    if min(gold.rewards) < max(gold.rewards):
        return replace(gold, remark="some earn less than others")
    return gold


def _is_better(gold: TaskCheckRow, empty: TaskCheckRow) -> bool:
    """Whether some gold answer earns more than every empty one."""
    return not empty.rewards or max(gold.rewards, default=0.0) > max(empty.rewards)


def _exceeding(
    gold: TaskCheckRow, wrong: TaskCheckRow, tried: Sequence[tuple[str, int]]
) -> TaskCheckRow:
    """Warn of wrong answers that earn more than the gold answers of their examples."""
    if "wrong" in (gold.verdict, wrong.verdict):
        return wrong
    better = [
        f"{short_text(text)} ({reward:g} instead of {gold.rewards[place]:g})"
        for (text, place), reward in zip(tried, wrong.rewards, strict=True)
        if reward > gold.rewards[place]
    ]
    if not better:
        return wrong
    remark = (
        f"{len(better)} of {len(tried)} earn more than the gold answer of their example, such as "
        f"{better[0]}: members learn to write such answers"
    )
    return replace(wrong, verdict="warning", remark=remark)


def _tempting(
    gold: TaskCheckRow, hostile: TaskCheckRow, texts: Sequence[str], answers: Sequence[str]
) -> TaskCheckRow:
    """Warn when a hostile text earns as much as a right answer, and name the text.

    A text whose last number is the gold answer of its example may be right by chance.
    """
    if "wrong" in (gold.verdict, hostile.verdict) or not gold.rewards or not hostile.rewards:
        return hostile
    best = max(hostile.rewards)
    if best < min(gold.rewards):
        return hostile
    winners = [
        text
        for text, reward, answer in zip(texts, hostile.rewards, answers, strict=True)
        if reward == best and NUMBER.findall(text)[-1:] != [answer]
    ]
    if not winners:
        return hostile
    shortest = min(winners, key=len)
    remark = (
        f"{len(winners)} of {len(texts)} earn {best:g}, as much as a gold answer, such as "
        f"{short_text(shortest)}: members may learn to write such a text"
    )
    return replace(hostile, verdict="warning", remark=remark, text=shortest)


def _episode(task: Task, graders: Graders) -> ExampleEpisode | None:
    if not isinstance(task, EpisodeTask):
        return None
    try:
        return play_example(task.examples("train")[0], task.max_turns, graders)
    except GermlineError:  # the check of empty answers reports it
        return None


def _prompts(
    task: Task, config: Config, count: int, episode: ExampleEpisode | None
) -> tuple[TaskCheckRow, tuple[ShownPrompt, ...]]:
    """Encode every prompt as the engine does, and decode some of them for display."""
    # Imported here: they import torch, which the rest of a check does not need.
    from germline.engines.context_length import context_remedy
    from germline.engines.pretrained import load_tokenizer
    from germline.engines.prompt_batch import encode_prompt

    tokenizer, context = load_tokenizer(str(NANO_DIR) if config.model == "nano" else config.model)
    everything = [*task.examples("train"), *task.examples("test")]
    try:
        encoded = [encode_prompt(tokenizer, example) for example in everything]
    except GermlineError as error:
        return TaskCheckRow("prompts", len(everything), (), "wrong", str(error)), ()
    lengths = [len(ids) for ids in encoded]
    new = make_decoding(config, task).max_new_tokens
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
        encoded[0], shown_at = encode_prompt(tokenizer, first), [0]
    shown = tuple(
        ShownPrompt(tokenizer.decode(encoded[place]), len(encoded[place]), everything[place].answer)
        for place in shown_at
    )
    return TaskCheckRow("prompts", len(everything), (), verdict, remark), shown
