"""Prompts as token ids: template, context of the model, left padding, and the shared prefix.

A conversation is continued by appending tokens: what the model wrote stays as it was generated, as
the cache holds it, even where a chat template would write it in another way (templates may drop the
thinking of earlier turns).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from germline.engines.pretrained import PretrainedModel, context_limit, end_ids
from germline.engines.rows_in_progress import control_ids
from germline.types import Completion, Example, GermlineError

CLOCK = "strftime_now"
"""The function by which a chat template reads the clock."""

CONTEXT_REMEDY = (
    "lower task.max_new_tokens, shorten the prompts, or use a model with a longer context"
)
"""What helps where the longest prompt and a completion do not fit the context."""


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, example: Example, date: str | None = None
) -> list[int]:
    """Tokenize one prompt, through the chat template where `example.chat` is set.

    The template writes `date`, such as 2026-01-31, for today; None: the day it is.
    """
    if example.chat:
        if not tokenizer.chat_template:
            raise GermlineError(
                "task.chat=true, but the model's tokenizer has no chat template: set "
                "task.chat=false to send prompts as they are"
            )
        ids = _through_template(
            tokenizer,
            (*example.context, ("user", example.prompt)),
            date,
            return_dict=False,
            tokenizer_kwargs={"verbose": False},
        )
    else:
        ids = _tokenized(tokenizer, example.prompt)
    if not ids:
        raise GermlineError(
            f"the prompt of example {example.index} has no tokens: {example.prompt!r}; give it "
            "some text"
        )
    return list(ids)


def _tokenized(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Tokenize a prompt that is sent as it is, with one token that begins it and none that ends it.

    A prompt that was rendered before may begin with the text of BOS, which some tokenizers add.
    """
    # The tokenizer's warning of long prompts is off: `PromptEncoder.check_length` checks them.
    ids = list(tokenizer(prompt, verbose=False)["input_ids"])
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    if bos is not None and ids[:2] == [bos, bos]:
        ids = ids[1:]
    if eos is not None and ids[1:] and ids[-1] == eos and not prompt.endswith(tokenizer.eos_token):
        ids = ids[:-1]
    return ids


@lru_cache(maxsize=8)
def at_date(template: str, date: str | None) -> str:
    """Return a chat template whose clock stands at a date: its own macro hides the function."""
    if date is None:
        return template
    day = datetime.fromisoformat(date)
    padded = "deHIjklmMSUVWy"  # `%-d` is `%d` without its zero
    parts = [
        "%" + one for one in [*"aAbBcCDFgGhnpPrRstTuwxXYzZ", *padded, *("-" + p for p in padded)]
    ]
    changes = "".join(f".replace({part!r}, {day.strftime(part)!r})" for part in parts)
    macro = f"{{% macro {CLOCK}(format) %}}{{{{ format{changes} }}}}{{% endmacro %}}"
    return f"{macro}\n{template}"  # the line break after a block is dropped


def _through_template(
    tokenizer: PreTrainedTokenizerBase,
    turns: Sequence[tuple[str, str]],
    date: str | None,
    **settings: object,
) -> Any:
    messages = [{"role": role, "content": content} for role, content in turns]
    try:
        template = at_date(str(tokenizer.get_chat_template()), date)
        return tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, chat_template=template, **settings
        )
    except Exception as error:  # a template is code of the model's folder
        raise GermlineError(
            f"task.chat=true, but the tokenizer's chat template fails ({error}): fix the template "
            "in the model's folder, or set task.chat=false"
        ) from error


PROMPTS_KEPT = 1 << 14
"""Prompts, and answers of environments, whose tokens are kept; there are new ones without end."""

REPLY_MARK = "GERMLINE-REPLY"
"""Stands for the model's turn where the template shows what follows it."""


def encode_answer(
    tokenizer: PreTrainedTokenizerBase,
    message: str,
    *,
    chat: bool,
    after: str,
    date: str | None = None,
) -> list[int]:
    """Tokenize a message that answers a turn of the model, with what the chat template adds.

    `after` is the text of the token with which the model ended its turn; empty if a limit did.
    """
    text = message
    if chat:
        turns = (("user", "x"), ("assistant", REPLY_MARK), ("user", message))
        rendered = str(_through_template(tokenizer, turns, date, tokenize=False))
        _, mark, text = rendered.partition(REPLY_MARK)
        if not mark:
            raise GermlineError(
                "the tokenizer's chat template leaves out earlier messages of the assistant, so a "
                "conversation of several turns cannot be continued: use another chat template, or "
                "set task.chat=false"
            )
        text = text.removeprefix(after)
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


class PromptEncoder:
    """Encodes prompts once with the tokenizer of a model, and checks them against the model.

    Attributes:
        context_tokens: the longest text of the model, in tokens; None where its config names no
            limit.
        special_ids: control tokens, which are not part of a text, end tokens included.
        padding_id: a token of the model that fills rows.
    """

    def __init__(self, pretrained: PretrainedModel) -> None:
        self._pretrained = pretrained
        self._model_tokens = int(pretrained.model.get_input_embeddings().num_embeddings)
        self.context_tokens = context_limit(pretrained.model.config)
        self._encoded: dict[tuple[object, ...], list[int]] = {}
        tokenizer = pretrained.tokenizer
        # Members often get the same answer; there are too many different ones to keep them all.
        self._answer = lru_cache(PROMPTS_KEPT)(
            partial(encode_answer, tokenizer, date=pretrained.date)
        )
        self.end_ids = frozenset(end_ids(pretrained))
        self.special_ids = control_ids(tokenizer, self.end_ids)
        padding = tokenizer.pad_token_id
        # A padding token may have been added to the tokenizer alone.
        is_known = padding is not None and padding < self._model_tokens
        self.padding_id = int(padding) if is_known else 0

    def encode(self, example: Example) -> list[int]:
        """Tokenize a prompt, through the chat template where `example.chat` is set."""
        if example.turns:
            return self._encode_turns(example)
        if example.token_ids:
            return self._known(example, list(example.token_ids))
        key = (example.prompt, example.chat, example.context)
        if key not in self._encoded:
            if len(self._encoded) >= PROMPTS_KEPT:
                self._encoded.clear()
            self._encoded[key] = self._known(
                example, encode_prompt(self._pretrained.tokenizer, example, self._pretrained.date)
            )
        return self._encoded[key]

    def _encode_turns(self, example: Example) -> list[int]:
        """Tokenize a conversation as it was held: turns of the model are the tokens it wrote."""
        ids = list(self.encode(replace(example, turns=())))
        end = ""
        for turn in example.turns:
            if turn.role == "user":
                ids += self._answer(turn.content, chat=example.chat, after=end)
            else:
                ids += turn.tokens
                end = self._end_text(turn.tokens)
        return ids

    def _known(self, example: Example, ids: list[int]) -> list[int]:
        """Return token ids, all of which the model must have."""
        if unknown := [token for token in ids if not 0 <= token < self._model_tokens]:
            given = "" if example.token_ids else ": its tokenizer is of another model"
            raise GermlineError(
                f"the prompt of example {example.index} has token {unknown[0]}, but the model "
                f"{self._pretrained.source!r} has the tokens 0 to {self._model_tokens - 1}{given}"
            )
        return ids

    def encode_answer(self, example: Example, completion: Completion, message: str) -> list[int]:
        """Tokenize the message of an environment that answers a completion."""
        after = self._end_text(completion.tokens)
        return self._answer(message, chat=example.chat, after=after)

    def _end_text(self, tokens: Sequence[int]) -> str:
        """Return the text of the token that ended a turn; empty if a limit did."""
        ends = [token for token in tokens[-1:] if token in self.end_ids]
        return str(self._pretrained.tokenizer.decode(ends)) if ends else ""

    def check_length(self, prompt: int, new: int) -> None:
        """Check that the longest prompt and `max_new_tokens` fit in the model's context."""
        if self.context_tokens is not None and prompt + new > self.context_tokens:
            raise context_error(prompt, new, self.context_tokens)


@dataclass(frozen=True)
class PaddedPrompts:
    """Prompts of one microbatch: a shared prefix, then the rest of each, left-padded to one width.

    Attributes:
        prefix: token ids every prompt starts with (possibly none); computed once per member.
        rest: `[examples, width]` token ids after the prefix.
        real: `[examples, width]`, False where `rest` is padding.
        lengths: tokens per prompt, prefix included.
    """

    prefix: tuple[int, ...]
    rest: torch.Tensor
    real: torch.Tensor
    lengths: tuple[int, ...]


def pad_prompts(prompts: Sequence[Sequence[int]], padding_id: int) -> PaddedPrompts:
    """Split off the longest common prefix, up to each prompt's last token; left-pad the rest."""
    prefix = _common_prefix(prompts)
    rests = [list(prompt[len(prefix) :]) for prompt in prompts]
    width = max(len(rest) for rest in rests)
    rows = [[padding_id] * (width - len(rest)) + rest for rest in rests]
    real = [[False] * (width - len(rest)) + [True] * len(rest) for rest in rests]
    return PaddedPrompts(
        prefix, torch.tensor(rows), torch.tensor(real), tuple(len(prompt) for prompt in prompts)
    )


def distinct_prompts(prompts: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the prompts that differ, in order of their first appearance, and which each is."""
    encoded = [tuple(prompt) for prompt in prompts]
    number = {ids: place for place, ids in enumerate(dict.fromkeys(encoded))}
    return [*number], [number[ids] for ids in encoded]


def _common_prefix(prompts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    shortest = min(len(prompt) for prompt in prompts) - 1
    same = 0
    while same < shortest and len({prompt[same] for prompt in prompts}) == 1:
        same += 1
    return tuple(prompts[0][:same])


def context_error(
    prompt: int, new: int, context: int, which: str = "the longest prompt"
) -> GermlineError:
    """Return the error of a prompt and `max_new_tokens` beyond the context of a model."""
    return GermlineError(
        f"task: {which} takes {prompt} tokens and max_new_tokens={new}, "
        f"together {prompt + new}, above the model's context of {context}: "
        f"{CONTEXT_REMEDY}"
    )
