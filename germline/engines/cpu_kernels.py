"""Norms and attention of a decoder with fewer passes over memory, for fp32 on a CPU.

On a CPU the matrix products of a small model are fast, and the operations between them take as much
time again: thousands of small attentions and rotations that write a new tensor for every operation.
The kernels here compute the same numbers, to rounding, by fewer and larger operations.

A kernel replaces the forward of a module whose children it recognizes, after both forwards agreed
on some inputs. Other modules keep the library's forward, and so does a module whose forward members
have replaced. Linear layers with corrections work inside the kernels as in the library's forward.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from germline.engines.model_tensors import replaced_forwards

SMALL_SCORES = 4096
"""Up to so many scores per text and key head, one product of all texts is faster than one each."""

AGREE = 1e-5
"""Largest difference from the library's forward, in units of the largest absolute output."""

LIMITS = ("attn_logit_softcapping", "clip_qkv")
"""Settings that bound scores or queries, keys and values, of Gemma 2 and OLMo: the small numbers of
the trial stay below such a bound, which the kernel does not have."""

INCOMPATIBLE = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of a module that has the expected children but works differently."""


class FusedDecoder:
    """The kernels of one model."""

    def __init__(self, model: nn.Module) -> None:
        modules = model.modules() if _is_fp32_on_cpu(model) else ()
        self._parts = [part for part in map(_kernel, modules) if part is not None]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the kernels during a `with` block, except in modules that members have changed."""
        parts = [part for part in self._parts if "forward" not in vars(part.module)]
        with replaced_forwards([(part.module, part) for part in parts]):
            yield


class _Norm:
    """Norm by the root mean square: x w / sqrt(mean(x^2) + eps), without a tensor of squares."""

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module
        (self._weight,) = module.parameters()
        has_long_name = hasattr(module, "variance_epsilon")
        self._eps = self.module.variance_epsilon if has_long_name else self.module.eps

    def sample(self) -> tuple[Tensor, dict[str, Any]]:
        """Return inputs on which both forwards must agree, and keyword arguments."""
        return _waves(2, 3, len(self._weight)), {}

    def __call__(self, hidden_states: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(hidden_states, dim=-1, keepdim=True)
        scale = length.square_().div_(hidden_states.shape[-1]).add_(self._eps).rsqrt_()
        return (hidden_states * scale).mul_(self._weight)


class _Attention:
    """Grouped-query attention with rotary positions, for a few new tokens per text.

    All texts and heads are one batched product, without repeating keys for the heads that share
    them. The library's forward handles many tokens at once and other kinds of masks.
    """

    def __init__(self, module: Any) -> None:
        assert all(getattr(module.config, name, None) is None for name in LIMITS)
        self.module = module
        self._q, self._k, self._v = module.q_proj, module.k_proj, module.v_proj
        self._o = module.o_proj
        self._norms = [module.q_norm, module.k_norm] if hasattr(module, "q_norm") else None
        self._dim: int = module.head_dim
        self._sharing: int = module.num_key_value_groups
        self._scaling: float = module.scaling
        self._layer: int = module.layer_idx

    def sample(self) -> tuple[Tensor, dict[str, Any]]:
        texts, tokens = 2, 3
        mask = _waves(texts, 1, tokens, tokens)
        return _waves(texts, tokens, int(self._q.get_parameter("weight").shape[1])), {
            "position_embeddings": _waves(2, texts, tokens, self._dim).unbind(),
            "attention_mask": mask.masked_fill_(mask > 0.5, torch.finfo(mask.dtype).min),
        }

    def __call__(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        past_key_values: Cache | None = None,
        **named: Any,
    ) -> Any:
        # Families that rotate a part of each head pass narrower angles than those of the trial.
        is_whole = position_embeddings[0].shape[-1] == self._dim
        if not is_whole or not self._is_small(hidden_states, attention_mask):
            return type(self.module).forward(
                self.module,
                hidden_states,
                position_embeddings=position_embeddings,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                **named,
            )
        assert attention_mask is not None
        q, k, v = self._queries_keys_values(hidden_states, position_embeddings)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self._layer)
        return self._o(self._attended(q, k, v, attention_mask)), None

    def _is_small(self, hidden_states: Tensor, mask: object) -> bool:
        """Tell whether the scores of a key head are few enough, and the mask is additive."""
        if not isinstance(mask, Tensor) or mask.dtype != hidden_states.dtype:
            return False
        return self._sharing * hidden_states.shape[1] * mask.shape[3] <= SMALL_SCORES

    def _queries_keys_values(
        self, hidden_states: Tensor, angles: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries `[texts, tokens, heads, dim]`, keys and values `[texts, heads, ...]`."""
        shape = (*hidden_states.shape[:2], -1, self._dim)
        q, k, v = (layer(hidden_states).view(shape) for layer in (self._q, self._k, self._v))
        if self._norms:
            q, k = self._norms[0](q), self._norms[1](k)
        return _rotated(q, *angles), _rotated(k, *angles).transpose(1, 2), v.transpose(1, 2)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Return softmax(q k^T scaling + mask) v, `[texts, tokens, heads x dim]`."""
        texts, tokens, heads, _ = q.shape
        length = k.shape[2]
        # Heads that share keys become more rows of the same product.
        rows = q.transpose(1, 2).reshape(-1, self._sharing * tokens, self._dim)
        scores = torch.bmm(rows, k.flatten(0, 1).mT).mul_(self._scaling)
        scores.view(texts, heads, tokens, length).add_(mask)
        attended = torch.bmm(torch.softmax(scores, -1), v.flatten(0, 1))
        by_token = attended.view(texts, heads, tokens, self._dim).transpose(1, 2)
        return by_token.reshape(texts, tokens, -1)


def _kernel(module: nn.Module) -> _Norm | _Attention | None:
    """Make the kernel of a module; None where it is not recognized or does not agree."""
    children = {name for name, _ in module.named_children()}
    if not children and type(module).__name__.endswith("RMSNorm"):
        kind: type[_Norm | _Attention] = _Norm
    elif children - {"q_norm", "k_norm"} == {"q_proj", "k_proj", "v_proj", "o_proj"}:
        kind = _Attention
    else:
        return None
    try:
        part = kind(module)
        inputs, named = part.sample()
        with torch.inference_mode():
            ours, theirs = (_first(one(inputs, **named)) for one in (part, module))
    except INCOMPATIBLE:
        return None
    error = (ours - theirs).abs().max()
    return part if bool(error <= AGREE * theirs.abs().max()) else None


def _rotated(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate pairs (i, i + dim / 2) by the angles: states cos + (-second, first) sin."""
    cos, sin = cosines[:, :, None], sines[:, :, None]
    half = states.shape[-1] // 2
    rotated = states * cos
    rotated[..., :half].addcmul_(states[..., half:], sin[..., :half], value=-1)
    rotated[..., half:].addcmul_(states[..., :half], sin[..., half:])
    return rotated


def _waves(*shape: int) -> Tensor:
    """Return numbers between -1 and 1, all different."""
    return torch.arange(math.prod(shape)).mul(1.7).sin().view(shape)


def _first(output: Any) -> Tensor:
    """Return the hidden states of an output that may come with attention weights."""
    first: Tensor = output[0] if isinstance(output, tuple) else output
    return first


def _is_fp32_on_cpu(module: nn.Module) -> bool:
    return all(p.device.type == "cpu" and p.dtype == torch.float32 for p in module.parameters())
