"""Check whether a task is fit for training: its reward and prompts, as `germline check`.

At the start of every run, `germline.run.preflight` tries a few answers only.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from germline.config import TaskBase, load_config
from germline.config.config_files import model_source
from germline.config.loader import read_task
from germline.protocols import EpisodeTask, Task
from germline.run.build_parts import make_decoding, make_graders
from germline.run.model_prompts import without_overlong
from germline.run.preflight import distinct, places, prompts_in_both, short_text
from germline.run.reward_check import TaskCheckRow, Verdict, reward_rows
from germline.tasks import make_task
from germline.types import Decoding, Example, GermlineError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
    from germline.engines.prompt_batch import context_remedy

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
    shown = tuple(
        ShownPrompt(tokenizer.decode(encoded[place]), len(encoded[place]), everything[place].answer)
        for place in places(len(task.examples("train")), count)
    )
    return TaskCheckRow("prompts", len(everything), (), verdict, remark), shown
