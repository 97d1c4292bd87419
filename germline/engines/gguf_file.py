"""Unpack a GGUF file, the format of llama.cpp, into a Hugging Face folder that every engine loads.

transformers reads the file and turns its quantized blocks into floats. It takes 20 s for 135
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
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from filelock import FileLock
from huggingface_hub import cached_assets_path
from huggingface_hub.constants import HF_ASSETS_CACHE
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from germline.engines.checkpoint_files import check_complete
from germline.record.atomic_files import explain_write_errors
from germline.types import GermlineError

log = logging.getLogger(__name__)

WITHOUT_WEIGHTS = "without-weights"
"""Name of a folder with config and tokenizer alone."""

ROPE_FACTORS = "rope_freqs.weight"
"""The only place where a file has the scaling of its rotary embedding."""


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
