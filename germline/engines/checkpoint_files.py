"""The files of a model: what they hold, and how a GGUF file becomes a folder.

transformers draws missing weights at random, loads the integers of an undeclared quantization as
numbers, and keeps two tensors that config.json ties: files that give other weights than a user
expects are refused. Damaged and missing files raise errors of the libraries.

A GGUF file, the format of llama.cpp, is unpacked into a Hugging Face folder that every engine
loads. transformers reads the file and turns its quantized blocks into floats. It takes 20 s for 135
million weights, as the vocabulary is parsed four times, so the folder is kept in the cache of
Hugging Face (`HF_HOME/assets/germline`). Another path, size or time of change of the file, or
another transformers, makes another folder. Config and tokenizer are unpacked without the weights
too, which is all that an estimate reads.

Weights are stored in fp32, the only dtype with every product of a block's numbers and its scale. A
model ends its turn with the `eot` token of the file as well as with its `eos` token.

Limits: the architectures that transformers reads; the tokenizer is made of the vocabulary and
merges alone, so it may split rare texts unlike the original one.
"""

import hashlib
import io
import logging
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from filelock import FileLock
from huggingface_hub import cached_assets_path
from huggingface_hub.constants import HF_ASSETS_CACHE
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file
from transformers.utils.hub import get_checkpoint_shard_files

from germline.record.atomic_files import explain_write_errors
from germline.types import GermlineError

log = logging.getLogger(__name__)

FLOATS = ("F64", "F32", "F16", "BF16")

NARROW = {"BF16": torch.bfloat16, "F16": torch.float16}
"""Half-precision dtypes by the names of safetensors; fp32 represents all their values."""

WITHOUT_WEIGHTS = "without-weights"
"""Name of a folder with config and tokenizer alone."""

ROPE_FACTORS = "rope_freqs.weight"
"""The only place where a file has the scaling of its rotary embedding."""


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
        name.endswith("weight") and dtype not in FLOATS and math.prod(shape) > 1
        for name, dtype, shape, _ in stored_tensors(source)
    ):
        raise GermlineError(f"model: {source!r} is quantized: use the float model it was made from")


def stored_dtype(source: str) -> torch.dtype:
    """Return the half-precision dtype in which all weights of a model are stored, or else fp32."""
    dtypes = {dtype for _, dtype, *_ in stored_tensors(source) if dtype.startswith(("F", "BF"))}
    return NARROW.get(dtypes.pop(), torch.float32) if len(dtypes) == 1 else torch.float32


def safetensors_files(source: str) -> list[str]:
    """Return the safetensors files that transformers loads of a model; none where it has none."""
    kept = {"_raise_exceptions_for_missing_entries": False}
    if single := cached_file(source, SAFE_WEIGHTS_NAME, **kept):
        return [single]
    if index := cached_file(source, SAFE_WEIGHTS_INDEX_NAME, **kept):
        return get_checkpoint_shard_files(source, index)[0]
    return []


def stored_tensors(source: str) -> Iterator[tuple[str, str, tuple[int, ...], Path]]:
    """Yield name, dtype, shape and file of the tensors in the safetensors files of a model."""
    for file in filter(os.path.isfile, safetensors_files(source)):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                tensor = tensors.get_slice(name)
                yield name, tensor.get_dtype(), tuple(tensor.get_shape()), Path(file)


def unpacked_folder(source: str, *, weights: bool = True) -> Path:
    """Return the folder of a GGUF file in the cache; the first call for a file writes it.

    Without weights, it may hold only the config and the tokenizer.
    """
    file = Path(source).expanduser().absolute()
    about = file.stat()
    key = f"{file}\0{about.st_size}\0{about.st_mtime_ns}\0{transformers.__version__}"
    name = hashlib.sha256(os.fsencode(key)).hexdigest()[:16]
    with explain_write_errors(Path(HF_ASSETS_CACHE)):
        place = cached_assets_path("germline", namespace="gguf", subfolder=name)
        lock = FileLock(place / "lock").acquire()
    light, whole = place / WITHOUT_WEIGHTS, place / file.stem
    with lock:
        if not light.exists():
            _write_config(file, light)
        if weights and not whole.exists():
            log.warning("model: unpacking %s into %s, once", file, whole)
            _write_model(file, light, whole)
    return whole if whole.exists() else light


def unpack(file: Path, folder: Path) -> None:
    """Write a GGUF file as a Hugging Face folder, which appears when it is complete."""
    with TemporaryDirectory(dir=folder.parent) as temporary:
        light = Path(temporary) / WITHOUT_WEIGHTS
        _write_config(file, light)
        _write_model(file, light, folder)


def _write_config(file: Path, folder: Path) -> None:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise GermlineError(
            f"model={file}: reading it needs the library `gguf`: pip install 'germline[gguf]'"
        ) from None
    reader = GGUFReader(file)
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    config.dtype = torch.float32
    generation = GenerationConfig.from_model_config(config)
    generation._from_model_config = False  # or the next line is lost on loading
    field = reader.get_field("tokenizer.ggml.eot_token_id")
    end_of_turn = None if field is None else field.contents()
    if end_of_turn not in (None, generation.eos_token_id):
        generation.eos_token_id = [generation.eos_token_id, end_of_turn]
    if any(tensor.name == ROPE_FACTORS for tensor in reader.tensors):
        log.warning(
            "model: transformers ignores %s of %s, which scales the rotary embedding (Llama 3.1 "
            "and later), so the model differs from the original one: prefer its Hugging Face "
            "folder",
            *(ROPE_FACTORS, file),
        )
    with _new_folder(folder) as temporary:
        for part in (config, generation, tokenizer):
            part.save_pretrained(temporary)


def _write_model(file: Path, light: Path, folder: Path) -> None:
    """Write the folder of config and tokenizer again, with the weights.

    A model that was loaded from GGUF refuses to be saved, so its weights move into another one.
    """
    config = AutoConfig.from_pretrained(light)
    with redirect_stderr(io.StringIO()):  # a progress bar
        loaded, report = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            config=deepcopy(config),  # which gets a quantization_config
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # checked below, with names
        )
    check_complete(str(file), report)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig.from_pretrained(light)
    with _new_folder(folder) as temporary:
        shutil.copytree(light, temporary)
        model.save_pretrained(temporary)


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes the folder once it is complete."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # what a killed process left
    try:
        with explain_write_errors(folder):
            yield temporary
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
