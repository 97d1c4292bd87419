"""What the files of a model hold; refuse those that give other weights than a user expects.

transformers draws missing weights at random, loads the integers of an undeclared quantization as
numbers, and keeps two tensors that config.json ties. Damaged and missing files raise errors of the
libraries.
"""

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file
from transformers.utils.hub import get_checkpoint_shard_files

from germline.types import GermlineError

log = logging.getLogger(__name__)

FLOATS = ("F64", "F32", "F16", "BF16")

NARROW = {"BF16": torch.bfloat16, "F16": torch.float16}
"""Half-precision dtypes by the names of safetensors; fp32 represents all their values."""


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
            f"model: {source!r} does not hold {missing[0]} (tensors missing: {len(missing)}): "
            "its files are incomplete, or it is no causal language model"
        )
    if unused := sorted(report["unexpected_keys"]):
        log.warning("model: unused tensors of %r: %d, %s first", source, len(unused), unused[0])


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

    config.json and the headers of the files are read before any weight, so the libraries that
    unpack quantized weights need not be installed.
    """
    # Other integers are masks and positions, which old models keep.
    if getattr(config, "quantization_config", None) or any(
        name.endswith("weight") and dtype not in FLOATS and numbers > 1
        for name, dtype, numbers in _stored_tensors(source)
    ):
        raise GermlineError(f"model: {source!r} is quantized: use the float model it was made from")


def stored_dtype(source: str) -> torch.dtype:
    """Return the half-precision dtype in which all weights of a model are stored, or else fp32."""
    dtypes = {dtype for _, dtype, _ in _stored_tensors(source) if dtype.startswith(("F", "BF"))}
    return NARROW.get(dtypes.pop(), torch.float32) if len(dtypes) == 1 else torch.float32


def safetensors_files(source: str) -> list[str]:
    """Return the safetensors files that transformers loads of a model; none where it has none."""
    kept = {"_raise_exceptions_for_missing_entries": False}
    if single := cached_file(source, SAFE_WEIGHTS_NAME, **kept):
        return [single]
    if index := cached_file(source, SAFE_WEIGHTS_INDEX_NAME, **kept):
        return get_checkpoint_shard_files(source, index)[0]
    return []


def _stored_tensors(source: str) -> Iterator[tuple[str, str, int]]:
    """Yield name, dtype and size of the tensors in the safetensors files of a model."""
    for file in filter(os.path.isfile, safetensors_files(source)):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                tensor = tensors.get_slice(name)
                yield name, tensor.get_dtype(), math.prod(tensor.get_shape())
