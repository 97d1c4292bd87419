"""Random Llama models as GGUF files, named and permuted as llama.cpp's converter does."""

import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from safetensors.torch import load_file

from tests.tiny import CHAT_TEMPLATE

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
}
SPECIAL, NORMAL = 3, 1


def write_gguf(
    model: Path,
    file: Path,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    *,
    architecture: str = "llama",
    template: str | None = CHAT_TEMPLATE,
    weights: bool = True,
    end_of_turn: int | None = None,
    rope_factors: bool = False,
) -> Path:
    """Write a folder of `save_tiny` as a GGUF file; matrices are quantized, norms are not.

    Args:
        model: the folder, of the family `llama`.
        kind: how matrices are stored.
        architecture: what the file says it is.
        template: of chats; None leaves it out.
        weights: whether the file has tensors.
        end_of_turn: a token that ends a turn besides the end of the text.
        rope_factors: whether the file scales its rotary embedding as Llama 3.1 does.
    """
    config = json.loads((model / "config.json").read_text())
    writer = GGUFWriter(file, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    _add_tokenizer(writer, model, template)
    if end_of_turn is not None:
        writer.add_eot_token_id(end_of_turn)
    for name, tensor in load_file(model / "model.safetensors").items() if weights else ():
        values = _permuted(name, tensor, config).numpy()
        stored = kind if tensor.dim() > 1 else GGMLQuantizationType.F32
        writer.add_tensor(_name(name), quantize(values, stored), raw_dtype=stored)
    if rope_factors:
        writer.add_tensor("rope_freqs.weight", np.ones(config["head_dim"] // 2, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_tokenizer(writer: GGUFWriter, model: Path, template: str | None) -> None:
    core = json.loads((model / "tokenizer.json").read_text())
    words = sorted(core["model"]["vocab"], key=core["model"]["vocab"].get)
    special = [one["content"] for one in core["added_tokens"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([SPECIAL if word in special else NORMAL for word in words])
    writer.add_token_merges([" ".join(pair) for pair in core["model"]["merges"]])
    writer.add_eos_token_id(words.index("<|im_end|>"))
    writer.add_pad_token_id(words.index("<|endoftext|>"))
    writer.add_add_bos_token(False)
    if template is not None:
        writer.add_chat_template(template)


def _name(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def _permuted(name: str, tensor: torch.Tensor, config: dict[str, int]) -> torch.Tensor:
    """Order the rows of queries and keys as llama.cpp's rotary embedding expects them."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    for part, setting in heads.items():
        if part in name:
            halves = tensor.reshape(config[setting], 2, -1, tensor.shape[1])
            return halves.transpose(1, 2).reshape(tensor.shape).contiguous()
    return tensor
