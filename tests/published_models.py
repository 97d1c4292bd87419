"""Folders with the config.json of published models, without weights: their sizes are read there."""

import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

_QWEN_2_5 = {
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
_LLAMA_3_1 = {
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
CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-0.5B": _QWEN_2_5,
    "Qwen/Qwen2.5-0.5B-Instruct": _QWEN_2_5,
    "Qwen/Qwen3-4B": {
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
    },
    "meta-llama/Llama-3.1-8B": _LLAMA_3_1,
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA_3_1,
    "google/gemma-3-1b-it": {
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
    },
}


@cache
def published(name: str) -> str:
    """Return a folder with the config.json of a published model, the same in every process."""
    folder = Path(tempfile.gettempdir(), f"germline-published-{os.getuid()}", name)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"config.json.{os.getpid()}"  # other workers write the same file
    partial.write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    partial.replace(folder / "config.json")
    return str(folder)
