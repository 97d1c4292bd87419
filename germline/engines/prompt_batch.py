"""Examples to token ids: chat template or raw text, left padding, and the shared prefix."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from germline.types import Example, GermlineError


def encode_prompt(tokenizer: PreTrainedTokenizerBase, example: Example) -> list[int]:
    """Tokenize one prompt, through the chat template where the example asks for it.

    Raises:
        GermlineError: the prompt is empty, or a chat template is asked for and missing.
    """
    if example.chat:
        if not tokenizer.chat_template:
            raise GermlineError(
                "task.chat=true, but the model's tokenizer has no chat template: set "
                "task.chat=false to send prompts as they are"
            )
        ids = _through_template(tokenizer, example.prompt)
    else:
        # Whether it is too long is ours to say: the engine knows the model's context.
        ids = tokenizer(example.prompt, verbose=False)["input_ids"]
    if not ids:
        raise GermlineError(
            f"the prompt of example {example.index} has no tokens: {example.prompt!r}; give it "
            "some text"
        )
    return list(ids)


def _through_template(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    message = [{"role": "user", "content": prompt}]
    try:
        ids: list[int] = tokenizer.apply_chat_template(
            message,
            add_generation_prompt=True,
            return_dict=False,
            tokenizer_kwargs={"verbose": False},
        )
    except Exception as error:  # a template is code of the model's folder
        raise GermlineError(
            f"task.chat=true, but the tokenizer's chat template fails on a user's prompt "
            f"({error}): mend the template in the model's folder, or set task.chat=false"
        ) from error
    return ids


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
    """Split off the longest common prefix (leaving each prompt a token); left-pad the rest."""
    prefix = _common_prefix(prompts)
    rests = [list(prompt[len(prefix) :]) for prompt in prompts]
    width = max(len(rest) for rest in rests)
    rows = [[padding_id] * (width - len(rest)) + rest for rest in rests]
    real = [[False] * (width - len(rest)) + [True] * len(rest) for rest in rests]
    return PaddedPrompts(
        prefix, torch.tensor(rows), torch.tensor(real), tuple(len(prompt) for prompt in prompts)
    )


def _common_prefix(prompts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    shortest = min(len(prompt) for prompt in prompts) - 1
    same = 0
    while same < shortest and len({prompt[same] for prompt in prompts}) == 1:
        same += 1
    return tuple(prompts[0][:same])
