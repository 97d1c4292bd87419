"""Check that a model folder holds one complete set of weights, and say which files are read.

transformers reads the first of these that a folder has: `model.safetensors`, the shards that
`model.safetensors.index.json` lists, `pytorch_model.bin`, the shards of
`pytorch_model.bin.index.json`. Other sets of weights in the same folder, which may hold other
values, are not read: a warning names both.

Quantized models are refused, because the searched weights must be floats. Such a model has a
`quantization_config` in its config.json (bitsandbytes, GPTQ, AWQ, FP8, compressed-tensors, ...) or
integers in its files of weights, which transformers would load as numbers. Both are read before any
weight, so the libraries that unpack quantized weights need not be installed.

Limits: only folders are checked. transformers reports what a hub id lacks.
"""

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)

from germline.types import GermlineError

log = logging.getLogger(__name__)

IN_ORDER = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
"""Files that hold or list the weights; transformers reads the first that exists."""

FLOATS = ("F64", "F32", "F16", "BF16")


def check_files(source: str) -> None:
    """Check that no shard is missing, and warn of sets of weights that are not read.

    Raises:
        GermlineError: the index that is read lists a file that the folder does not hold.
    """
    folder = Path(source).expanduser()
    present = [name for name in IN_ORDER if (folder / name).is_file()]
    if not present:
        return
    read, *ignored = present
    if read.endswith(".index.json"):
        _check_shards(source, folder, read)
    if ignored:
        log.warning(
            "model: %r holds the weights more than once: %s is read, %s is not; remove the files "
            "that are out of date",
            source,
            read,
            " and ".join(ignored),
        )


def weight_files(folder: Path) -> list[Path] | None:
    """Return the files that hold the weights of a model folder; None if any of them is missing."""
    read = next((name for name in IN_ORDER if (folder / name).is_file()), None)
    if read is None:
        return None
    files = (
        [folder / name for name in _shards(folder, read)] if "index" in read else [folder / read]
    )
    return files if all(file.is_file() for file in files) else None


def _shards(folder: Path, index: str) -> list[str]:
    return sorted(set(json.loads((folder / index).read_text("utf-8"))["weight_map"].values()))


def _check_shards(source: str, folder: Path, index: str) -> None:
    shards = _shards(folder, index)
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise GermlineError(
            f"model: {source!r} lacks {', '.join(missing[:3])}{more}, of the {len(shards)} files "
            f"that {index} lists: copy what is missing into the folder, or get the folder again"
        )


def check_complete(source: str, report: Mapping[str, Iterable[Any]]) -> None:
    """Check that the files hold every weight, because the library draws missing ones at random."""
    missing = sorted(report["missing_keys"])
    if other := sorted(report["mismatched_keys"]):
        name, found, expected = other[0]
        raise GermlineError(
            f"model: {name} of {source!r} has the shape {list(found)}, but config.json expects "
            f"{list(expected)}: the files do not belong together; get the model's folder again"
        )
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise GermlineError(
            f"model: {source!r} does not hold {', '.join(missing[:3])}{more}: its files are "
            "incomplete, or it is no causal language model; get the model's folder again, or "
            "another one"
        )
    if unused := sorted(report["unexpected_keys"]):
        log.warning("model: %d tensors of %r go unused, %s first", len(unused), source, unused[0])


def check_tied(source: str, model: PreTrainedModel) -> None:
    """Check that weights which config.json says are one tensor were not stored as two.

    transformers loads both without an error. Older versions, inference servers and an export keep
    one of them only, so the same folder would be two models.

    Raises:
        GermlineError: two tensors that are tied have different values.
    """
    tied = model.get_expanded_tied_weights_keys(all_submodels=True)
    for name, other in tied.items():
        if model.get_parameter_or_buffer(name) is not model.get_parameter_or_buffer(other):
            raise GermlineError(
                f"model: {source!r} holds {name} and {other} with different values, but its "
                "config.json says tie_word_embeddings=true, that they are one tensor: set "
                f"tie_word_embeddings to false in config.json if {name} was trained separately, or "
                f"else remove {name} from the files of weights"
            )


def check_not_quantized(source: str, config: PreTrainedConfig) -> None:
    """Check that a model is not quantized, before its weights are loaded.

    Raises:
        GermlineError: the model is quantized; names the first integer tensor of a folder.
    """
    # Without a declaration only weights count: old models keep masks and positions as integers.
    declared = getattr(config, "quantization_config", None)
    codes = next(_codes(Path(source).expanduser(), "" if declared else "weight"), None)
    if not declared and codes is None:
        return
    found = f"its {codes}" if codes else f"says config.json ({_method(declared)})"
    raise GermlineError(
        f"model: {source!r} is quantized, {found}: quantized weights are not supported, as "
        "the space searches float weights; use the float model that was quantized"
    )


def _codes(folder: Path, ending: str) -> Iterator[str]:
    """Describe the tensors with this ending of the name that are not floats."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in sorted(tensors.keys()):
                about = tensors.get_slice(name)
                dtype, shape = about.get_dtype(), about.get_shape()
                if dtype not in FLOATS and math.prod(shape) > 1 and name.endswith(ending):
                    yield f"{name} is of type {dtype}"


def _method(declared: object) -> str:
    if isinstance(declared, dict):
        return f"quant_method {declared.get('quant_method', 'unknown')}"
    return f"quant_method {getattr(declared, 'quant_method', 'unknown')}"
