"""Modules of a decoder with fewer passes over memory, used during generation on a CPU.

On a CPU the matrix products of a small model are fast, and the operations between them take as much
time again: thousands of small attentions, rotations and gates that write a new tensor for every
operation, and an LM head whose rows are not aligned to cache lines when the vocabulary size is odd.
The kernels here compute the same numbers, to rounding, by fewer and larger operations.

A kernel replaces the forward of a module whose children it recognizes, after both forwards agreed
on some inputs. Other modules keep the library's forward, and so does a module whose forward members
have replaced. Linear layers with corrections work inside the kernels as in the library's forward.

Limits: fp32 on a CPU; elsewhere the library's kernels are used.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import Cache

from germline.engines.replaced_forwards import replaced_forwards

SMALL_SCORES = 4096
"""Up to so many scores per text and key head, one product of all texts is faster than one each."""

LINE = 16
"""Floats of a cache line: a product with aligned rows is written up to a third faster."""

AGREE = 1e-5
"""Largest difference from the library's forward, in units of the largest absolute output."""

INCOMPATIBLE = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of a module that has the expected children but works differently."""


class FusedDecoder:
    """The kernels of one model."""

    def __init__(self, model: nn.Module) -> None:
        kinds = (_Norm, _Gate, _Attention, _Layer, _Head) if _is_fp32_on_cpu(model) else ()
        found = (kind.of(module) for module in model.modules() for kind in kinds)
        self._parts = [part for part in found if part is not None]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the kernels during a `with` block, except in modules that members have changed."""
        parts = [part for part in self._parts if "forward" not in vars(part.module)]
        with replaced_forwards([(part.module, part) for part in parts]):
            yield


class _Part:
    """A kernel that replaces a module's forward."""

    children: ClassVar[frozenset[str]] = frozenset()
    optional: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @classmethod
    def of(cls, module: nn.Module) -> "_Part | None":
        """Make the kernel of a module; None where it is not recognized or does not agree."""
        if not cls.knows(module):
            return None
        try:
            part = cls(module)
            inputs, named = part.sample()
            with torch.inference_mode():
                ours, theirs = (_first(one(inputs, **named)) for one in (part, module))
        except INCOMPATIBLE:
            return None
        error = (ours - theirs).abs().max()
        return part if bool(error <= AGREE * theirs.abs().max()) else None

    @classmethod
    def knows(cls, module: nn.Module) -> bool:
        """Tell whether a module has the children of this kernel."""
        return {name for name, _ in module.named_children()} - cls.optional == cls.children

    def sample(self) -> tuple[Tensor, dict[str, Any]]:
        """Return inputs on which both forwards must agree, and keyword arguments."""
        raise NotImplementedError

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        raise NotImplementedError


class _Norm(_Part):
    """Norm by the root mean square: x w / sqrt(mean(x^2) + eps), without a tensor of squares."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        (self._weight,) = module.parameters()
        self._eps = getattr(
            module, "variance_epsilon" if hasattr(module, "variance_epsilon") else "eps"
        )

    @classmethod
    def knows(cls, module: nn.Module) -> bool:
        return super().knows(module) and type(module).__name__.endswith("RMSNorm")

    def sample(self) -> tuple[Tensor, dict[str, Any]]:
        return _waves(2, 3, len(self._weight)), {}

    def __call__(self, hidden_states: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(hidden_states, dim=-1, keepdim=True)
        scale = length.square_().div_(hidden_states.shape[-1]).add_(self._eps).rsqrt_()
        return (hidden_states * scale).mul_(self._weight)


class _Gate(_Part):
    """A gated MLP: down(silu(gate(x)) * up(x)), with the product in place."""

    children = frozenset(("gate_proj", "up_proj", "down_proj", "act_fn"))

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._gate = module.get_submodule("gate_proj")
        self._up = module.get_submodule("up_proj")
        self._down = module.get_submodule("down_proj")

    def sample(self) -> tuple[Tensor, dict[str, Any]]:
        return _waves(2, 3, _width(self._gate)), {}

    def __call__(self, x: Tensor) -> Any:
        gated = functional.silu(self._gate(x), inplace=True)
        return self._down(gated.mul_(self._up(x)))


class _Attention(_Part):
    """Grouped-query attention with rotary positions, for a few new tokens per text.

    All texts and heads are one batched product, without repeating keys for the heads that share
    them. The library's forward handles many tokens at once and other kinds of masks.
    """

    children = frozenset(("q_proj", "k_proj", "v_proj", "o_proj"))
    optional = frozenset(("q_norm", "k_norm"))

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._q, self._k, self._v = module.q_proj, module.k_proj, module.v_proj
        self._o = module.o_proj
        self._norms = [module.q_norm, module.k_norm] if hasattr(module, "q_norm") else None
        self._dim: int = module.head_dim
        self._sharing: int = module.num_key_value_groups
        self._scaling: float = module.scaling
        self._layer: int = module.layer_idx

    def sample(self) -> tuple[Tensor, dict[str, Any]]:
        return _states(_width(self._q), self._dim)

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


class _Layer(_Part):
    """A layer of a decoder: x + attention(norm(x)), then x + mlp(norm(x)), both sums in place."""

    children = frozenset(("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"))

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._before, self._attention = module.input_layernorm, module.self_attn
        self._between, self._mlp = module.post_attention_layernorm, module.mlp

    def sample(self) -> tuple[Tensor, dict[str, Any]]:
        return _states(_width(self._attention.q_proj), self._attention.head_dim)

    def __call__(self, hidden_states: Tensor, **named: Any) -> Any:
        attended, _ = self._attention(hidden_states=self._before(hidden_states), **named)
        attended.add_(hidden_states)
        return self._mlp(self._between(attended)).add_(attended)


class _Head(_Part):
    """A linear layer whose output rows would not be aligned to cache lines."""

    @classmethod
    def knows(cls, module: nn.Module) -> bool:
        if not isinstance(module, nn.Linear) or type(module) is not nn.Linear:
            return False
        return module._parameters["bias"] is None and module.out_features % LINE != 0

    def sample(self) -> tuple[Tensor, dict[str, Any]]:
        return _waves(2, 3, _width(self.module)), {}

    def __call__(self, inputs: Tensor) -> Tensor:
        weight: Tensor = self.module.get_parameter("weight")
        rows = inputs.reshape(-1, weight.shape[1])
        output = torch.mm(rows, weight.t(), out=align_rows(rows, len(weight)))
        return output.unflatten(0, inputs.shape[:-1])


def align_rows(rows: Tensor, width: int) -> Tensor:
    """Allocate the product of these rows, `[rows, width]`, with rows aligned to cache lines."""
    return rows.new_empty(len(rows), -(-width // LINE) * LINE)[:, :width]


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


def _states(width: int, head_dim: int) -> tuple[Tensor, dict[str, Any]]:
    """Return hidden states `[2, 3, width]`, and the keyword arguments of attention."""
    texts, tokens = 2, 3
    mask = _waves(texts, 1, tokens, tokens)
    return _waves(texts, tokens, width), {
        "position_embeddings": _waves(2, texts, tokens, head_dim).unbind(),
        "attention_mask": mask.masked_fill_(mask > 0.5, torch.finfo(mask.dtype).min),
    }


def _first(output: Any) -> Tensor:
    """Return the hidden states of an output that may come with attention weights."""
    first: Tensor = output[0] if isinstance(output, tuple) else output
    return first


def _width(linear: Any) -> int:
    return int(linear.get_parameter("weight").shape[1])


def _is_fp32_on_cpu(module: nn.Module) -> bool:
    return all(p.device.type == "cpu" and p.dtype == torch.float32 for p in module.parameters())
