"""Refuse models whose files would give other weights than a user expects, without an error.

transformers draws missing weights at random, loads the integers of an undeclared quantization as
numbers, and keeps two tensors that config.json ties. Damaged and missing files raise errors of the
libraries.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers import PreTrainedConfig, PreTrainedModel

from germline.types import GermlineError

log = logging.getLogger(__name__)

FLOATS = ("F64", "F32", "F16", "BF16")


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold the weights of a model folder; none where it has none."""
    return [*folder.glob("*.safetensors")] or [*folder.glob("pytorch_model*.bin")]


def check_complete(source: str, report: Mapping[str, Iterable[Any]]) -> None:
    """Check that the files hold every weight, because the library draws missing ones at random."""
    if other := sorted(report["mismatched_keys"]):
        name, found, expected = other[0]
        raise GermlineError(
            f"model: {name} of {source!r} has the shape {list(found)}, but config.json expects "
            f"{list(expected)}"
        )
    if missing := sorted(report["missing_keys"]):
        raise GermlineError(
            f"model: {source!r} does not hold {missing[0]} ({len(missing)} tensors are missing): "
            "its files are incomplete, or it is no causal language model"
        )
    if unused := sorted(report["unexpected_keys"]):
        log.warning("model: %d tensors of %r go unused, %s first", len(unused), source, unused[0])


def check_tied(source: str, model: PreTrainedModel) -> None:
    """Check that weights which config.json says are one tensor were not stored as two.

    transformers loads both without an error. Older versions, inference servers and an export keep
    one of them only, so the same folder would be two models.
    """
    tied = model.get_expanded_tied_weights_keys(all_submodels=True)
    for name, other in tied.items():
        if model.get_parameter_or_buffer(name) is not model.get_parameter_or_buffer(other):
            raise GermlineError(
                f"model: {source!r} holds {name} and {other} with different values, but its "
                "config.json says tie_word_embeddings=true: set that to false if both were "
                "trained, or else remove one of them"
            )


def check_not_quantized(source: str, config: PreTrainedConfig) -> None:
    """Check that a model is not quantized: the searched weights must be floats.

    config.json and the files of a folder are read before any weight, so the libraries that unpack
    quantized weights need not be installed.
    """
    files = sorted(Path(source).expanduser().glob("*.safetensors"))
    if getattr(config, "quantization_config", None) or any(map(_has_integer_weights, files)):
        raise GermlineError(f"model: {source!r} is quantized: use the float model it was made from")


def _has_integer_weights(file: Path) -> bool:
    """Tell by names that end with `weight`: old models keep masks and positions as integers."""
    with safe_open(file, framework="pt") as tensors:
        slices = (tensors.get_slice(name) for name in tensors.keys() if name.endswith("weight"))  # noqa: SIM118 - not a dict
        return any(
            one.get_dtype() not in FLOATS for one in slices if math.prod(one.get_shape()) > 1
        )
