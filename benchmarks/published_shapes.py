"""Models with random weights in the shapes of published ones."""

import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from germline.nano import NANO_DIR
from germline.types import Example

_QWEN2 = {"model_type": "qwen2", "vocab_size": 151936}
SHAPES: dict[str, dict[str, Any]] = {
    "Qwen2.5-0.5B": _QWEN2
    | {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
    | {"num_attention_heads": 14, "num_key_value_heads": 2},
    "Qwen2.5-1.5B": _QWEN2
    | {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28}
    | {"num_attention_heads": 12, "num_key_value_heads": 2},
    "Qwen3-0.6B": {"model_type": "qwen3", "vocab_size": 151936, "head_dim": 128}
    | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28}
    | {"num_attention_heads": 16, "num_key_value_heads": 8},
    "Gemma-3-1B": {"model_type": "gemma3_text", "vocab_size": 262144, "head_dim": 256}
    | {"hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26}
    | {"num_attention_heads": 4, "num_key_value_heads": 1, "sliding_window": 512},
    "Llama-3.2-1B": {"model_type": "llama", "vocab_size": 128256, "head_dim": 64}
    | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
    | {"num_attention_heads": 32, "num_key_value_heads": 8},
    # To try a benchmark out.
    "tiny": {"model_type": "qwen2", "vocab_size": 1024}
    | {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    | {"num_attention_heads": 2, "num_key_value_heads": 1},
}
"""The sizes of the published `config.json`s; all of these models tie their embeddings."""


def random_model(shape: str) -> Any:
    """Make a random model in bf16 without an end token."""
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    settings = SHAPES[shape] | special | {"tie_word_embeddings": True}
    config = AutoConfig.for_model(max_position_embeddings=4096, **settings)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def save_random(shape: str, folder: Path) -> None:
    """Write a random model, with the tokenizer of nano."""
    random_model(shape).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(NANO_DIR)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    os.sync()  # or the first journal that is timed waits until the weights are on the disk


def prompts(count: int) -> list[Example]:
    """Return examples with prompts of about twenty tokens."""
    return [Example(i, f"What is {i % 20} + {i // 20}?", "", chat=True) for i in range(count)]
