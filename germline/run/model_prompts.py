"""How prompts are sent to a model: their template, date and length, and opened thinking.

An engine checks the prompts of the batch that it is given, so one prompt that is too long would end
a run in the generation that draws it, and again after every resume: prompts are checked before a
run begins.
"""

import copy
import datetime
import json
import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from germline.config import Config, InProcess
from germline.config.config_files import model_source
from germline.config.row_tasks import PythonFile
from germline.protocols import EpisodeTask, Task
from germline.record import RunDirectory
from germline.tasks import make_task
from germline.tasks.task_settings import is_open, open_thinking
from germline.types import Example, GermlineError, Split

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

TOKENIZED = 64
"""How many prompts, the longest in bytes, are tokenized at most to find one that is too long."""

TEMPLATE_TOKENS = 256
"""More tokens than a chat template adds to a prompt."""

EXPORT_FACTS = "germline.json"
"""The file in a folder of exported weights that says what they were trained on."""

SPLITS: tuple[Split, ...] = ("train", "test")


def fit_task(config: Config, task: Task) -> Task:
    """Return the task of a config as its model can answer it.

    Where the chat template ends a prompt with `<think>`, a completion without `</think>` is
    thinking to its end. With `task.overlong_prompts=drop`, rows that do not fit are left out.
    """
    return without_overlong(config, _with_opened_thinking(config, task))


def with_prompt_date(config: Config) -> Config:
    """Return the config with today's date, if the chat template of its model writes one."""
    section = config.task
    if section.prompt_date or not section.sends_chats or config.engine.kind == "toy":
        return config
    from germline.engines.prompt_batch import CLOCK  # it imports torch: slow

    if CLOCK not in str(_tokenizer(model_source(config.model)).chat_template):
        return config
    today = datetime.datetime.now().astimezone().date().isoformat()
    return config.model_copy(update={"task": section.model_copy(update={"prompt_date": today})})


def check_prompt_lengths(config: Config, task: Task) -> None:
    """Refuse prompts that do not fit a model in this process, if its files are here.

    Of an environment, nothing is checked: its conversations are as long as the model makes them.
    """
    if not isinstance(config.engine, InProcess) or isinstance(task, EpisodeTask):
        return
    limit = _PromptLimit.of(config, task)
    if limit is None:
        return
    drawn = [("train", one) for one in task.examples("train")]
    drawn += [("test", one) for one in task.examples("test")[: config.held_out.examples]]
    longest = sorted(drawn, key=lambda one: _bytes(one[1]), reverse=True)[:TOKENIZED]
    for split, example in longest:
        if not limit.fits(example):
            from germline.engines.prompt_batch import context_error

            which = f"the prompt of row {example.index} of the {split} split, "
            which += f"{example.prompt[:40]!r}...,"
            error = context_error(limit.tokens(example), limit.new, limit.context, which)
            raise GermlineError(f"{error}; or leave such rows out with task.overlong_prompts=drop")


def without_overlong(config: Config, task: Task) -> Task:
    """Return the task without the rows that do not fit the model, if its config drops them."""
    dropped = config.task.overlong_prompts == "drop" and config.engine.kind != "toy"
    limit = _PromptLimit.of(config, task) if dropped else None
    if limit is None:
        return task
    kept = {split: tuple(filter(limit.fits, task.examples(split))) for split in SPLITS}
    counts = {split: len(task.examples(split)) - len(kept[split]) for split in SPLITS}
    if not any(counts.values()):
        return task
    need = f"with max_new_tokens={limit.new} they need more than {limit.context} tokens"
    if not all(kept.values()):
        raise GermlineError(f"task.overlong_prompts=drop leaves no row of a split: {need}")
    log.warning(
        "task.overlong_prompts=drop: rows left out: %d to train on, %d held-out ones, as %s",
        *(counts["train"], counts["test"], need),
    )
    changed = copy.copy(task)
    changed.examples = kept.__getitem__  # type: ignore[method-assign, assignment]
    return changed


def asks_chats(directory: RunDirectory | None, config: Config) -> bool:
    """Return whether prompts for weights go through the chat template.

    Those for a run do as its own did, and so do those for weights that it exported. Those for any
    other model or PEFT adapter do.
    """
    if directory:
        return sends_chats(config)
    folder = Path(getattr(config.space, "init_adapter", None) or config.model)
    return bool(read_export_facts(folder).get("chat", True))


def read_export_facts(folder: Path) -> dict[str, Any]:
    """Return what an export says about its run; empty for a folder that germline did not write."""
    try:
        facts = json.loads((folder / EXPORT_FACTS).read_bytes())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def sends_chats(config: Config) -> bool:
    """Return whether the task of a config sends its prompts through the chat template.

    A Python file decides this itself, so it is loaded; where it is gone or broken, the answer is
    that of most tasks.
    """
    section = config.task
    if not isinstance(section, PythonFile) or section.chat is not None:
        return section.sends_chats
    try:
        return make_task(section).examples("train")[0].chat
    except GermlineError:
        return section.sends_chats


@dataclass(frozen=True)
class _PromptLimit:
    """The tokens that a prompt may have beside its completion of `new` tokens."""

    source: str
    date: str | None
    context: int
    new: int

    @classmethod
    def of(cls, config: Config, task: Task) -> "_PromptLimit | None":
        """Return the limit of a run; None where the model's files are not here, or name none."""
        from germline.engines.pretrained import load_context, local_model_folder  # slow: torch

        source = model_source(config.model)
        try:
            if local_model_folder(source) is None:
                return None
            context = load_context(source)
        except GermlineError:
            return None  # loading the model refuses files that are missing or damaged
        if context is None:
            return None
        new = config.task.max_new_tokens or task.max_new_tokens
        return cls(source, config.task.prompt_date, context, new)

    def fits(self, example: Example) -> bool:
        """Tell whether a prompt fits; a short one is not tokenized: a token has a byte or more."""
        most = self.context - self.new
        return _bytes(example) + TEMPLATE_TOKENS <= most or self.tokens(example) <= most

    def tokens(self, example: Example) -> int:
        from germline.engines.prompt_batch import encode_prompt

        return len(encode_prompt(self._tokenizer, example, self.date))

    @cached_property
    def _tokenizer(self) -> "PreTrainedTokenizerBase":
        return _tokenizer(self.source)  # which few runs need, as most prompts surely fit


def _with_opened_thinking(config: Config, task: Task) -> Task:
    if not config.task.strip_thinking or config.engine.kind == "toy":
        return task
    example = next(iter(task.examples("train")), None)
    if example is None or not example.chat:
        return task
    from germline.engines.prompt_batch import encode_prompt

    try:
        tokenizer = _tokenizer(model_source(config.model))
        ids = encode_prompt(tokenizer, example, config.task.prompt_date)
        prompt = str(tokenizer.decode(ids))
    except GermlineError:
        return task  # loading the model refuses it
    return open_thinking(task) if is_open(prompt, config.task.thinking_tag) else task


def _tokenizer(source: str) -> "PreTrainedTokenizerBase":
    from germline.engines.pretrained import load_tokenizer

    return load_tokenizer(source)[0]


def _bytes(example: Example) -> int:
    texts = (example.prompt, *(content for _, content in example.context))
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
