"""Load a Hugging Face causal language model and its tokenizer, with errors a user can act on.

The libraries of Hugging Face repeat every request to a hub that they cannot reach, also for models
that are in its cache. So one request shows whether the hub can be reached.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants, get_session
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)
from transformers.utils.hub import cached_file
from transformers.utils.logging import (
    disable_progress_bar,
    get_verbosity,
    set_verbosity,
    set_verbosity_error,
)

from germline.config.config_files import is_gguf
from germline.engines.checkpoint_files import (
    check_complete,
    check_not_quantized,
    check_tied,
    stored_dtype,
    unpacked_folder,
)
from germline.engines.model_tensors import first_not_finite, parameter_dtype
from germline.types import GermlineError

log = logging.getLogger(__name__)

HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
"""OWNER/NAME; the hub knows the oldest models, such as gpt2, without an owner."""

REACH_S = 10.0
"""How long to wait for the hub, in seconds."""


@dataclass(frozen=True)
class PretrainedModel:
    """A model on the CPU and its tokenizer.

    Attributes:
        model: with parameters in the half-precision dtype of its files, or else in fp32.
        stored_dtype: the dtype in config.json, in which `engine.dtype=auto` serves on a GPU.
        source: the folder or Hugging Face id; of a GGUF file, the folder of its floats.
        date: which a chat template gets for today, as 2026-01-31; None: the day it is.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stored_dtype: torch.dtype
    source: str
    date: str | None = None


def load_pretrained(source: str, date: str | None = None) -> PretrainedModel:
    """Load a folder, a GGUF file or a hub id, in the dtype of its files if that is half precision.

    No fp32 copy of bf16 weights is made here: engines convert the searched tensors to fp32, one by
    one, which is exact.

    Raises:
        GermlineError: there is no such model, its files cannot be read or are incomplete, or its
            weights are quantized or not finite.
    """
    config, tokenizer = _config_and_tokenizer(source)
    source = unpacked_source(source)
    with loading_errors(source):
        check_not_quantized(source, config)
        with parameter_dtype(stored_dtype(source)):
            model, report = AutoModelForCausalLM.from_pretrained(
                source,
                dtype=torch.float32,  # of buffers; see dtypes.py
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # checked below, with names
            )
    check_complete(source, report)
    check_tied(source, model)
    check_finite(source, model)
    model.eval().requires_grad_(requires_grad=False)
    stored = getattr(config, "dtype", None)
    dtype = stored if isinstance(stored, torch.dtype) else torch.float32
    return PretrainedModel(model, tokenizer, dtype, source, date)


def load_tokenizer(source: str) -> tuple[PreTrainedTokenizerBase, int | None]:
    """Load the tokenizer without the weights; return it and the model's context, if known."""
    config, tokenizer = _config_and_tokenizer(source)
    return tokenizer, context_limit(config)


def load_context(source: str) -> int | None:
    """Return the same context alone: a large vocabulary takes a second to load."""
    return context_limit(_load_config(source))


def context_limit(config: PreTrainedConfig) -> int | None:
    """Return the longest text of a model, in tokens; None if it does not say.

    With longrope (Phi-3, Phi-4), the rotary angles of all texts of a batch change when one of them
    exceeds `original_max_position_embeddings`, so an answer would depend on the rest of its batch.
    """
    setting = partial(getattr, config.get_text_config())
    rope = setting("rope_parameters", None) or setting("rope_scaling", None) or {}
    original = "original_max_position_embeddings"
    limits = [setting("max_position_embeddings", None)]
    for kind in (rope, *rope.values()):
        if isinstance(kind, Mapping) and "longrope" in (kind.get("rope_type"), kind.get("type")):
            limits.append(kind.get(original) or setting(original, None))
    return min((one for one in limits if isinstance(one, int) and one > 0), default=None)


def unpacked_source(source: str, *, weights: bool = True) -> str:
    """Return the folder that a GGUF file is unpacked into, and any other source as it is.

    Without weights, the folder may hold only the config and the tokenizer.
    """
    if not is_gguf(source):
        return source
    if not Path(source).expanduser().is_file():  # or its name would be looked up on the hub
        raise GermlineError(
            f"model: there is no file {source!r} (relative paths start at {Path.cwd()}; a run "
            "whose model was moved: `germline resume RUN model=FILE`)"
        )
    with loading_errors(source):
        return str(unpacked_folder(source, weights=weights))


def local_model_folder(source: str, *, weights: bool = False) -> Path | None:
    """Return the folder of a model on this machine: itself, or in the Hugging Face cache.

    Without weights, that of a GGUF file may hold the config and the tokenizer alone.
    """
    source = unpacked_source(source, weights=weights)
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    try:
        file = cached_file(source, "config.json", local_files_only=True)
    except (OSError, ValueError):  # it is not in the cache, or no name of a repository
        return None
    return None if file is None else Path(file).parent


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Turn off the messages of transformers; the errors that matter are raised here."""
    before = get_verbosity()
    set_verbosity_error()
    # Progress bars would overwrite the live view; the command line announces the loading itself.
    disable_progress_bar()
    try:
        yield
    finally:
        set_verbosity(before)


def _config_and_tokenizer(source: str) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase]:
    config = _load_config(source)
    with loading_errors(unpacked := unpacked_source(source, weights=False)):
        tokenizer = AutoTokenizer.from_pretrained(unpacked)
    # Without the files of a tokenizer, the library makes one with an empty vocabulary.
    if not tokenizer("a 1")["input_ids"]:
        raise GermlineError(
            f"model: the tokenizer of {source!r} turns text into no tokens: its files are missing "
            "or empty"
        )
    return config, tokenizer


def _load_config(source: str) -> PreTrainedConfig:
    given, source = source, unpacked_source(source, weights=False)
    folder = Path(source).expanduser()
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise GermlineError(
            f"model: {source!r} is a PEFT adapter, not a model: export its run with --merged, or "
            f"train on from it with space.kind=lora and space.init_adapter={source}"
        )
    with loading_errors(source):
        config = AutoConfig.from_pretrained(source)
        check_causal(given, config)
    return config


def check_causal(source: str, config: PreTrainedConfig) -> None:
    """Refuse a model that is not a decoder-only causal language model.

    transformers loads a bidirectional encoder such as BERT as a language model, but every token of
    it attends to the tokens that follow.
    """
    kind = config.model_type
    encodes = kind in {*MODEL_FOR_MASKED_LM_MAPPING_NAMES, "bert-generation"} and not getattr(
        config, "is_decoder", getattr(config, "causal", False)
    )
    encodes = encodes or getattr(config, "is_encoder_decoder", False)
    if encodes or kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise GermlineError(
            f"model: {source!r} (model_type {kind}) is no decoder-only causal language model that "
            "transformers loads: give one, such as those of the Qwen, Llama and Gemma families"
        )


@contextmanager
def loading_errors(source: str, setting: str = "model") -> Iterator[None]:
    """Load files of a model without messages, and turn any error into a GermlineError."""
    try:
        with silence_transformers(), hub_access(source, setting):
            yield
    except GermlineError:
        raise
    except Exception as error:  # a damaged file may raise anything in the libraries
        said = " ".join(str(error).split())
        raise GermlineError(
            f"{setting}: {source!r} cannot be loaded ({type(error).__name__}: {said}): give a "
            "complete folder or file of a model that transformers loads, or get it again"
        ) from error


def check_finite(source: str, model: PreTrainedModel, setting: str = "model") -> None:
    """Refuse weights that are not finite."""
    if name := first_not_finite(dict(model.named_parameters())):
        raise GermlineError(f"{setting}: {name} of {source!r} holds numbers that are not finite")


def save_pretrained(
    pretrained: PretrainedModel, masters: dict[str, torch.Tensor], folder: Path, dtype: torch.dtype
) -> None:
    """Write masters, rounded to dtype, as a folder that plain `transformers` loads.

    Saved buffers, such as the biases that balance experts, keep their values: they are narrowed
    only where that is exact.
    """
    model = pretrained.model
    config = type(model.config).from_dict(model.config.to_dict())
    config.dtype = dtype
    with torch.device("meta"):
        shell = AutoModelForCausalLM.from_config(config, dtype=dtype)
    rounded = {name: tensor.detach().cpu().to(dtype) for name, tensor in masters.items()}
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name, stored in model.state_dict().items():
        if name not in parameters:
            buffer = stored.cpu()
            narrow = buffer.to(dtype) if buffer.is_floating_point() else buffer
            rounded[name] = narrow if torch.equal(narrow.to(buffer.dtype), buffer) else buffer
    shell.load_state_dict(rounded, strict=False, assign=True)
    shell.tie_weights()
    shell.generation_config = generation_config(pretrained)
    shell.save_pretrained(folder)
    pretrained.tokenizer.save_pretrained(folder)


def save_tokenizer(pretrained: PretrainedModel, folder: Path) -> None:
    """Write the tokenizer and how to generate beside an adapter, as other trainers do."""
    pretrained.tokenizer.save_pretrained(folder)
    generation_config(pretrained).save_pretrained(folder)


def generation_config(pretrained: PretrainedModel) -> GenerationConfig:
    """Return how weights of a run generate: greedily, to the tokens that ended texts in the run.

    A run applies nothing else of the model's own generation_config.json, such as a
    repetition_penalty; what is left out is named in a warning.
    """
    own = pretrained.model.generation_config
    kept = {name: getattr(own, name, None) for name in ("bos_token_id", "pad_token_id")}
    without_effect = {*kept, "eos_token_id", "transformers_version", "use_cache"}
    dropped = {
        name: value
        for name, value in own.to_diff_dict().items()
        if value and name not in without_effect and not name.startswith("_")
    }
    if dropped:
        log.warning(
            "generation_config.json: the run did not apply %s of %s, so the folder leaves it out",
            *(", ".join(f"{name}={value}" for name, value in dropped.items()), pretrained.source),
        )
    ends = end_ids(pretrained)
    return GenerationConfig(**kept, eos_token_id=ends[0] if len(ends) == 1 else [*ends] or None)


def end_ids(pretrained: PretrainedModel) -> tuple[int, ...]:
    """Collect every token that ends a text: of generation config, model config and tokenizer."""
    ends: dict[int, None] = {}
    sources = (pretrained.model.generation_config, pretrained.model.config, pretrained.tokenizer)
    for source in sources:
        value = getattr(source, "eos_token_id", None)
        ends |= dict.fromkeys(
            value if isinstance(value, (list, tuple)) else [value] if value is not None else []
        )
    return tuple(ends)


@contextmanager
def hub_access(source: str, setting: str) -> Iterator[None]:
    """Let the libraries load a model from a folder, the hub, or its cache."""
    is_folder = Path(source).expanduser().exists()
    if not is_folder and not HUB_NAME.fullmatch(source):
        raise GermlineError(
            f"{setting}: {source!r} is no folder in {Path.cwd()}, and no name of a model on the "
            "Hugging Face hub, which is OWNER/NAME, such as Qwen/Qwen2.5-0.5B-Instruct (a run "
            "whose model was moved: `germline resume RUN model=FOLDER`)"
        )
    with nullcontext() if is_folder or _is_hub_reached() else without_network():
        yield


@contextmanager
def without_network() -> Iterator[None]:
    """Let the libraries of Hugging Face read their caches only.

    They read HF_HUB_OFFLINE when they are imported, so imported modules are changed as well.
    """
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    names = ("huggingface_hub.constants", "datasets.config")
    loaded: list[Any] = [sys.modules[name] for name in names if name in sys.modules]
    values = [module.HF_HUB_OFFLINE for module in loaded]
    for module in loaded:
        module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module, value in zip(loaded, values, strict=True):
            module.HF_HUB_OFFLINE = value
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def _is_hub_reached() -> bool:
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=REACH_S)
    except Exception:  # noqa: BLE001 - its class belongs to the HTTP library of the version
        return False
    return True
