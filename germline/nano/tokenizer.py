"""The nano model's tokenizer: byte-level BPE of at most 1024 tokens, learned from its own texts.

Pieces are words with their trailing space, single digits, single operators (with the spaces around
them) and single marks, so numbers and operators never merge with anything and an answer is the
same token wherever it stands before a full stop. The three boilerplate stretches of the countdown
prompt and its tags are one token each: they carry no information, and prefill would otherwise rule
the cost of every generation. Any text survives encoding and decoding, since all 256 bytes are
tokens.
"""

import re
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from germline.nano import text

VOCABULARY_SIZE = 1024
MAX_LENGTH = 512
PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_BOILERPLATE = (
    *text.COUNTDOWN_BOILERPLATE,
    text.THOUGHT_TO_ANSWER,
    text.ANSWER_END,
    *("<think>", "</think>", "<answer>", "</answer>"),
    *("user\n", "assistant\n"),
)
# An operator between spaces | an operator | a digit | a word and its space | a mark and its space.
_PIECES = r" [+\-*/=] |[+\-*/=()\[\]×%]|[0-9]|[A-Za-z]+[ \n]?|[.,:;?!] ?|\s|[^\sA-Za-z0-9]"


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Learn the merges from `texts`; the same texts give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken(token, special=True) for token in (PAD, TURN_START, TURN_END)]
    phrases = [AddedToken(phrase, normalized=False) for phrase in _BOILERPLATE]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(phrases),
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Learning does not know added tokens, so their text is cut out, or it would take up the merges.
    cuts = re.compile("|".join(re.escape(cut) for cut in (*_BOILERPLATE, TURN_START, TURN_END)))
    tokenizer.train_from_iterator((part for text in texts for part in cuts.split(text)), trainer)
    tokenizer.add_tokens(phrases)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
