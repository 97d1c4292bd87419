"""The nano model's tokenizer: Qwen2's own, with at most 1024 tokens learned from the model's texts.

Byte-level BPE; each digit is a token. It must be a `Qwen2Tokenizer`, because `AutoTokenizer` uses
that class, with its pre-tokenization, for every Qwen2 model, whatever the folder declares. Fixed
phrases are one token each, because prefill would otherwise dominate the time of a generation: the
boilerplate of the countdown prompt, its tags, the role lines of the chat template, and operators
with the spaces around them, which therefore never merge with a number.

Limits: text is normalized (NFC) as in Qwen2, so a letter written as base and accent is decoded as
one character; every other text is decoded unchanged, because all 256 bytes are tokens.
"""

import json
import re
from collections.abc import Iterable

from tokenizers import AddedToken, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer

from benchmarks.nano_training import training_text as text

VOCABULARY_SIZE = 1024
MAX_LENGTH = 512
PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_SPECIALS = (PAD, TURN_START, TURN_END)
_PHRASES = (
    *text.COUNTDOWN_BOILERPLATE,
    text.THOUGHT_TO_ANSWER,
    text.ANSWER_END,
    *("<think>", "</think>", "<answer>", "</answer>"),
    *("user\n", "assistant\n"),
    *(" + ", " - ", " * ", " / ", " = ", "["),
)


def build_tokenizer(texts: Iterable[str]) -> Qwen2Tokenizer:
    """Learn the merges from `texts`; the same texts give the same tokenizer."""
    learner = Qwen2Tokenizer().backend_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(_PHRASES),
        special_tokens=list(_SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # The trainer does not know added tokens, so their text is removed; it would use up merges.
    longest_first = sorted((*_PHRASES, *_SPECIALS), key=len, reverse=True)
    cuts = re.compile("|".join(map(re.escape, longest_first)))
    learner.train_from_iterator((part for text in texts for part in cuts.split(text)), trainer)
    learned = json.loads(learner.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=learned["vocab"],
        merges=[(left, right) for left, right in learned["merges"]],
        eos_token=TURN_END,
        pad_token=PAD,
        unk_token=None,
        extra_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_max_length=MAX_LENGTH,
    )
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in _PHRASES])
    return tokenizer
