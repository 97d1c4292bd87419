"""The sizes of a model, read from its config.json and the header of its files, without loading it.

The model is created on torch's meta device, which allocates no memory: names, shapes and ties are
the same as after loading, for every architecture that transformers knows.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
)

from germline.config.config_files import model_source
from germline.engines.checkpoint_files import stored_dtype, weight_files
from germline.engines.model_tensors import list_tensors
from germline.engines.pretrained import (
    check_causal,
    hub_access,
    silence_transformers,
    unpacked_source,
)
from germline.engines.start_check import unserved_family
from germline.types import GermlineError, TensorInfo


@dataclass(frozen=True)
class ModelShape:
    """The sizes that determine memory.

    Attributes:
        tensors: every parameter, tied ones once.
        stored_dtype: dtype of the files, as they are loaded.
        config_dtype: dtype in config.json; `engine.dtype=auto` serves in it on a GPU.
        hidden: width of the residual stream.
        unserved: why engine.kind=inprocess cannot serve the family; None where it may.
    """

    tensors: tuple[TensorInfo, ...]
    stored_dtype: torch.dtype
    config_dtype: torch.dtype
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    unserved: str | None = None

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
    def inner(self) -> int:
        """Width of the MLP: the largest output of a linear layer in the blocks."""
        inside = (one for one in self.tensors if one.layer is not None and len(one.shape) > 1)
        return max(map(_outputs, inside), default=self.hidden)

    @property
    def kv_numbers(self) -> int:
        """Numbers in the keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def _outputs(tensor: TensorInfo) -> int:
    """Return the outputs of a linear layer; experts may be stacked in one tensor."""
    return tensor.out_in_features[0] if len(tensor.shape) == 2 else tensor.shape[-2]


def shape_of(source: str) -> ModelShape:
    """Read the sizes of `nano`, a folder, a GGUF file, or a Hugging Face id."""
    path = Path(unpacked_source(model_source(source), weights=False)).expanduser()
    try:
        place = str(path) if path.exists() else source
        with silence_transformers(), hub_access(place, "model"):
            config = AutoConfig.from_pretrained(place)
        check_causal(source, config)
        # The files of a hub id are not inspected: that would download them.
        has_weights = path.is_dir() and bool(weight_files(path))
        return _shape(config, stored_dtype(str(path)) if has_weights else None)
    except GermlineError:
        raise
    except Exception as error:  # a damaged or unusual config may raise anything in the libraries
        raise GermlineError(
            f"model: config.json or the files of {source!r} cannot be read ({error}): give a "
            "Hugging Face model folder, a hub id, or 'nano'"
        ) from error


def _shape(config: PreTrainedConfig, stored: torch.dtype | None) -> ModelShape:
    with silence_transformers(), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    named = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    # Gemma 4 has heads of another size in some layers: the largest ones are counted everywhere.
    layers = getattr(text, "per_layer_config", None) or [text]
    heads = max(_heads(layer) for layer in layers)
    return ModelShape(
        tensors=list_tensors(model),
        stored_dtype=named if stored is None else stored,
        config_dtype=named,
        hidden=int(text.hidden_size),
        layers=int(text.num_hidden_layers),
        heads=heads,
        kv_heads=max(
            int(getattr(layer, "num_key_value_heads", None) or _heads(layer)) for layer in layers
        ),
        head_dim=max(
            int(getattr(layer, "head_dim", None) or text.hidden_size // _heads(layer))
            for layer in layers
        ),
        vocabulary=int(text.vocab_size),
        unserved=unserved_family(config),
    )


def _heads(layer: PreTrainedConfig) -> int:
    """Return the number of heads of attention; a recurrent model has none."""
    return int(getattr(layer, "num_attention_heads", None) or 1)
