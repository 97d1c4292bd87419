"""The sizes of a model, read from its config.json and the header of its files, without loading it.

The model is created on torch's meta device, which allocates no memory: names, shapes and ties are
the same as after loading, for every architecture that transformers knows.

Limit: experts of a mixture are counted as if every token passed through all of them.
"""

import math
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
)

from germline.engines.dtypes import stored_dtype
from germline.engines.hub_access import hub_access
from germline.engines.model_tensors import list_tensors
from germline.engines.pretrained import check_causal, silence_transformers, unpacked_source
from germline.estimates.popular_model_configs import PUBLISHED
from germline.nano import NANO_DIR
from germline.types import GermlineError, TensorInfo


@dataclass(frozen=True)
class ModelShape:
    """The sizes that determine memory and time.

    Attributes:
        source: the folder or Hugging Face id.
        tensors: every parameter, tied ones once.
        stored_dtype: dtype of the files, as they are loaded.
        config_dtype: dtype in config.json; `engine.dtype=auto` serves in it on a GPU.
        hidden: width of the residual stream.
        layers: decoder blocks.
        heads: of attention.
        kv_heads: heads of keys and values.
        head_dim: width of a head.
        vocabulary: rows of the LM head.
    """

    source: str
    tensors: tuple[TensorInfo, ...]
    stored_dtype: torch.dtype
    config_dtype: torch.dtype
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @cached_property
    def numbers(self) -> int:
        """Number of weights, tied ones counted once."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def size(self) -> str:
        """The number of weights in millions (M) or billions (B), as names of models have it."""
        billions = self.numbers / 1e9
        return f"{billions:.3g} B" if billions >= 0.1 else f"{1e3 * billions:.3g} M"

    @cached_property
    def linear(self) -> tuple[TensorInfo, ...]:
        """Weights of the linear layers in the decoder blocks, experts included."""
        inside = (tensor for tensor in self.tensors if tensor.layer is not None)
        return tuple(one for one in inside if len(one.shape) > 1)

    @cached_property
    def linear_numbers(self) -> int:
        """Weights that take part in the matrix products of a token in the decoder blocks."""
        return sum(math.prod(one.shape) for one in self.linear)

    @property
    def head_numbers(self) -> int:
        """Weights that take part in the matrix product of a token in the LM head."""
        return self.hidden * self.vocabulary

    @cached_property
    def inner(self) -> int:
        """Width of the MLP: the largest output of a linear layer in the blocks."""
        return max((_outputs(one) for one in self.linear), default=self.hidden)

    @property
    def kv_numbers(self) -> int:
        """Numbers in the keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @cached_property
    def largest(self) -> int:
        """Numbers in the largest tensor."""
        return max(math.prod(tensor.shape) for tensor in self.tensors)


def _outputs(tensor: TensorInfo) -> int:
    """Return the outputs of a linear layer; experts may be stacked in one tensor."""
    return tensor.out_in_features[0] if len(tensor.shape) == 2 else tensor.shape[-2]


def shape_of(source: str) -> ModelShape:
    """Read the sizes of `nano`, a folder, a GGUF file, or a Hugging Face id.

    Raises:
        GermlineError: config.json is missing or cannot be read, or the hub cannot be reached.
    """
    if source in PUBLISHED:
        return _published(source)
    config, stored = _read(source, "model")
    check_causal(source, config)
    return _shape(source, config, stored)


def classifier_shape_of(source: str, setting: str) -> ModelShape:
    """Read the sizes of a sequence classifier in a folder or with a Hugging Face id.

    Args:
        source: the folder or id.
        setting: that names it, for errors.

    Raises:
        GermlineError: config.json is missing or cannot be read, or the hub cannot be reached.
    """
    return _shape(source, *_read(source, setting), AutoModelForSequenceClassification)


def _read(source: str, setting: str) -> tuple[PreTrainedConfig, torch.dtype | None]:
    """Return a model's config, and the dtype of its files where they are in a folder."""
    given = str(NANO_DIR) if source == "nano" else unpacked_source(source, weights=False)
    path = Path(given).expanduser()
    try:
        place = str(path) if path.exists() else source
        with silence_transformers(), hub_access(place, setting):
            config = AutoConfig.from_pretrained(place)
        # The files of a hub id are not inspected: that would download them.
        return config, stored_dtype(str(path)) if path.is_dir() else None
    except GermlineError:
        raise
    except Exception as error:  # a damaged config may raise anything in the libraries
        raise GermlineError(
            f"{setting}: config.json or the files of {source!r} cannot be read ({error}): give a "
            "Hugging Face model folder, a hub id, or 'nano'"
        ) from error


@cache
def _published(source: str) -> ModelShape:
    return shape_from(source, dict(PUBLISHED[source]))


def shape_from(source: str, values: dict[str, object]) -> ModelShape:
    """Read the sizes of a config.json that is given as a mapping."""
    kind = str(values.pop("model_type"))
    return _shape(source, AutoConfig.for_model(kind, **values), None)


def _shape(
    source: str,
    config: PreTrainedConfig,
    stored: torch.dtype | None,
    kind: Any = AutoModelForCausalLM,
) -> ModelShape:
    with silence_transformers(), torch.device("meta"):
        model = kind.from_config(config)
    text = config.get_text_config()
    named = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    heads = int(text.num_attention_heads)
    return ModelShape(
        source=source,
        tensors=list_tensors(model),
        stored_dtype=named if stored is None else stored,
        config_dtype=named,
        hidden=int(text.hidden_size),
        layers=int(text.num_hidden_layers),
        heads=heads,
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(text, "head_dim", None) or text.hidden_size // heads),
        vocabulary=int(text.vocab_size),
    )
