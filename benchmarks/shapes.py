"""Models with random weights of given sizes, for timing.

The shapes of Qwen2.5 are those of its published configurations (Qwen2.5 technical report, arXiv
2412.15115). The tokenizer is that of the nano model.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from germline.engines.pretrained import PretrainedModel
from germline.nano import NANO_DIR
from germline.types import Example


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder."""

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = True

    @property
    def linear(self) -> int:
        """Weights of the linear layers of the decoder blocks."""
        attention = self.hidden * (2 * self.hidden + 2 * self.kv_width)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def head(self) -> int:
        """Weights of the output head."""
        return self.hidden * self.vocabulary

    @property
    def sides(self) -> int:
        """Inputs plus outputs of all linear layers of the blocks: numbers of a rank-1 member."""
        q, o = 2 * self.hidden, 2 * self.hidden
        k_and_v = 2 * (self.hidden + self.kv_width)
        return self.layers * (q + o + k_and_v + 3 * (self.hidden + self.inner))

    @property
    def kv_width(self) -> int:
        """Numbers of a key (or a value) of one token in one layer."""
        return self.hidden // self.heads * self.kv_heads

    @property
    def numbers(self) -> int:
        """Number of weights, without norms and biases."""
        return self.linear + self.head * (1 if self.tied else 2)


QWEN = {
    one.name: one
    for one in (
        Shape("0.5B", 896, 4864, 24, 14, 2, 151936),
        Shape("1.5B", 1536, 8960, 28, 12, 2, 151936),
        Shape("7B", 3584, 18944, 28, 28, 4, 152064, tied=False),
        Shape("72B", 8192, 29568, 80, 64, 8, 152064, tied=False),
    )
}
TOY = Shape("toy", 64, 128, 2, 2, 1, 1023)
BENCH = {"22M": Shape("22M", 448, 1344, 9, 7, 1, 1023)}
"""Sizes at which matrix products dominate on a CPU, and a population still takes seconds."""


def random_model(shape: Shape, device: torch.device) -> PretrainedModel:
    """Build a model in fp32 without an end token."""
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    model.eval().requires_grad_(requires_grad=False)
    tokenizer = AutoTokenizer.from_pretrained(NANO_DIR)
    tokenizer.eos_token = None
    return PretrainedModel(model, tokenizer, torch.bfloat16, shape.name)


def save_random(shape: Shape, folder: Path) -> str:
    """Write a random model into a folder, for remote engines; return the folder's name."""
    pretrained = random_model(shape, torch.device("cpu"))
    pretrained.model.save_pretrained(folder)
    pretrained.tokenizer.save_pretrained(folder)
    return str(folder)


def prompts(count: int) -> list[Example]:
    """Return examples with prompts of about twenty tokens."""
    return [Example(i, f"What is {i % 20} + {i // 20}?", "", chat=True) for i in range(count)]
