"""Attention in fp32 on a CPU: heads that share keys become the rows of one product.

There PyTorch computes every head of every text by itself, and reads prompts with keys and values
repeated for each head. Small scores of all texts and heads take less time in one batched
product; this is the function that transformers looks up by its name, where it would take `sdpa`.
Masks hold finite numbers, as the engine writes them.
"""

import inspect
import sys
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from germline.engines.pretrained import silence_transformers

NAME = "germline_grouped"

SMALL_SCORES = 4096
"""Up to so many scores of a text and key head, one product of all texts is faster."""


def use_grouped_attention(model: PreTrainedModel) -> None:
    """Let a model use it, unless its code asks for `sdpa` by name: it may mask in another way."""
    if model.config._attn_implementation != "sdpa":
        return
    if '"sdpa"' not in inspect.getsource(sys.modules[type(model).__module__]):
        with silence_transformers():
            model.set_attn_implementation(NAME)


def grouped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **named: Any
) -> Any:
    """Return softmax(query key^T scaling + mask) value, `[texts, tokens, heads, dim]`, and None."""
    texts, heads, new, dim = query.shape
    rows, length = heads // key.shape[1] * new, key.shape[2]
    is_additive = isinstance(attention_mask, Tensor) and attention_mask.dtype == query.dtype
    is_other = any(named.get(one) is not None for one in ("softcap", "position_bias", "cache"))
    if rows * length > SMALL_SCORES or not is_additive or is_other or named.get("dropout"):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **named)
    scale = dim**-0.5 if named.get("scaling") is None else named["scaling"]
    mask = attention_mask.expand(texts, heads, new, length).reshape(-1, rows, length)
    scores = torch.baddbmm(mask, query.reshape(-1, rows, dim), key.flatten(0, 1).mT, alpha=scale)
    attended = torch.bmm(torch.softmax(scores, -1), value.flatten(0, 1))
    return attended.view(texts, heads, new, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
