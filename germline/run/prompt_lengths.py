"""Refuse prompts that do not fit into the model's context, before a run begins.

An engine checks the prompts of the batch that it is given, so one prompt that is too long would end
a run in the generation that draws it, and again after every resume.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from germline.config import Config, InProcess
from germline.engines.context_length import check_context, context_limit
from germline.protocols import EpisodeTask, Task
from germline.types import Example

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOKENIZED = 64
"""How many prompts, the longest in bytes, are tokenized."""

TEMPLATE_TOKENS = 256
"""More tokens than a chat template adds to a prompt."""

BEGINNING = 40
"""Characters of a prompt by which an error names it."""


def check_prompt_lengths(config: Config, task: Task) -> None:
    """Refuse prompts that are too long for a model in this process, if its files are here.

    A token has at least one byte, so most prompts need not be tokenized. Of an environment, nothing
    is checked: its conversations are as long as the model makes them.

    Raises:
        GermlineError: a prompt and its completion need more tokens than the model's context has.
    """
    if not isinstance(config.engine, InProcess) or isinstance(task, EpisodeTask):
        return
    new = config.task.max_new_tokens or task.max_new_tokens
    from germline.estimates.model_shape import local_model_folder  # it imports torch: slow

    folder = local_model_folder(config.model)
    context, named = (None, "") if folder is None else _context_limit(folder / "config.json")
    longest = sorted(_played(config, task), key=lambda one: _bytes(one[1]), reverse=True)
    if context is None or _bytes(longest[0][1]) + TEMPLATE_TOKENS + new <= context:
        return
    from germline.engines.pretrained import load_tokenizer

    tokenizer, _ = load_tokenizer(str(folder))
    tokens, split, example = max(
        ((_tokens(tokenizer, one), split, one) for split, one in longest[:TOKENIZED]),
        key=lambda found: found[0],
    )
    which = f" ({split} split, {example.prompt[:BEGINNING]!r}...)"
    check_context(tokens, new, context, named, which)


def _played(config: Config, task: Task) -> Iterator[tuple[str, Example]]:
    """Yield the examples that a run may draw, with their splits."""
    yield from (("train", one) for one in task.examples("train"))
    yield from (("test", one) for one in task.examples("test")[: config.held_out.examples])


def _bytes(example: Example) -> int:
    texts = (example.prompt, *(content for _, content in example.context))
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def _tokens(tokenizer: "PreTrainedTokenizerBase", example: Example) -> int:
    from germline.engines.prompt_batch import encode_prompt

    return len(encode_prompt(tokenizer, example))


def _context_limit(file: Path) -> tuple[int | None, str]:
    """Return the longest text of a model, in tokens, by its config.json; None if it does not say.

    `load_tokenizer` says it too, but loads the vocabulary, which most runs need not do twice.
    """
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return context_limit((values.get("text_config") or values).get)
    except (OSError, ValueError, AttributeError):
        return None, ""  # loading the model refuses a file that is missing or damaged
