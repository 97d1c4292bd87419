"""Random-weight models of real architectures: what tests load instead of a download."""

from inspect import signature
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

ALIASES = {"gemma3": "gemma3_text"}
"""Names of families here, and their `model_type`."""

OTHER_NAMES = {
    "hidden_size": ("n_embd", "d_model"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len"),
}
"""What some families call a size."""

SIZES_OF_FEW = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "rotary_dim": 8,
    "state_size": 8,
    "num_heads": 8,
    "n_groups": 1,
    "word_embed_proj_dim": 64,
    "attention_hidden_size": 64,
}
"""Sizes of what only some families have, such as experts."""


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of 320 tokens, with a chat template."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    text = ["user assistant What is 1 + 2? The answer is 3.\n", "the quick brown fox jumps.\n"]
    core.train_from_iterator(
        text * 20,
        trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def save_tiny(
    folder: Path,
    family: str = "qwen2",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **settings: object,
) -> Path:
    """Write a random model of a family, sharp enough that greedy choices are not ties."""
    words = tokenizer()
    model = AutoModelForCausalLM.from_config(tiny_config(family, **settings))
    randomize(model, seed)
    model.to(dtype).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def tiny_config(family: str, **settings: object) -> PreTrainedConfig:
    """Make a tiny config of the sizes that a family has, and these settings."""
    words = tokenizer()
    sizes = {
        "vocab_size": len(words),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
        **SIZES_OF_FEW,
    }
    kind = CONFIG_MAPPING[ALIASES.get(family, family)]
    known = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})}
    known |= signature(kind.__init__).parameters.keys()
    for name, others in OTHER_NAMES.items():
        sizes |= dict.fromkeys(others, sizes[name])
        for other in known.intersection(others):
            settings = {other if key == name else key: value for key, value in settings.items()}
    return kind(**{key: sizes[key] for key in sizes if key in known} | settings)


def randomize(model: PreTrainedModel, seed: int = 0) -> None:
    """Draw weights, sharp enough that greedy choices are not ties."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.12, generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.05, generator=generator)
