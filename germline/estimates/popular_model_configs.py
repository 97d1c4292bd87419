"""The config.json of popular models, so that estimates need no download.

The values are those that the models' authors published on the Hugging Face hub, without the ones
that do not affect sizes. For a folder, or a model that is not listed here, its own config.json is
read.
"""

from collections.abc import Mapping
from typing import Any

_QWEN_2_5_0_5B: Mapping[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
_QWEN_3_4B: Mapping[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
_LLAMA_3_1_8B: Mapping[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
_GEMMA_3_1B: Mapping[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": 262144,
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_hidden_layers": 26,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}

PUBLISHED: dict[str, Mapping[str, Any]] = {
    "Qwen/Qwen2.5-0.5B": _QWEN_2_5_0_5B,
    "Qwen/Qwen2.5-0.5B-Instruct": _QWEN_2_5_0_5B,
    "Qwen/Qwen3-4B": _QWEN_3_4B,
    "meta-llama/Llama-3.1-8B": _LLAMA_3_1_8B,
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA_3_1_8B,
    "google/gemma-3-1b-pt": _GEMMA_3_1B,
    "google/gemma-3-1b-it": _GEMMA_3_1B,
}
