"""Random sequence classifiers, which tests load instead of downloading reward models."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForSequenceClassification,
)

from tests.tiny import tokenizer

CLASSIFIERS: dict[str, tuple[type[PreTrainedConfig], type[PreTrainedModel]]] = {
    "qwen2": (Qwen2Config, Qwen2ForSequenceClassification),
    "llama": (LlamaConfig, LlamaForSequenceClassification),
    "bert": (BertConfig, BertForSequenceClassification),
}


def save_classifier(
    folder: Path, family: str = "qwen2", *, seed: int = 0, labels: int = 1, chat: bool = False
) -> Path:
    """Write a random classifier; without `chat`, its tokenizer has no chat template."""
    words = tokenizer()
    if not chat:
        words.chat_template = None
    config_class, model_class = CLASSIFIERS[family]
    config = config_class(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        num_labels=labels,
        pad_token_id=words.pad_token_id,
        eos_token_id=words.eos_token_id,
        bos_token_id=None,
    )
    model = model_class(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.2, generator=generator)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def save_pku_model(folder: Path, bias: float = 0.5) -> Path:
    """Write a Llama classifier in the format of PKU-SafeRLHF: its head is `score_head`."""
    save_classifier(folder, "llama")
    tensors = load_file(folder / "model.safetensors")
    tensors["score_head.weight"] = tensors.pop("score.weight")
    tensors["score_head.bias"] = torch.tensor([bias])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["LlamaModelForScore"], "score_dim": 1}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
