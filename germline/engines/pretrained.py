"""Load a Hugging Face causal language model and its tokenizer, with errors a user can act on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from germline.types import GermlineError


@dataclass(frozen=True)
class Pretrained:
    """A model in fp32 on the CPU, its tokenizer, and the dtype its checkpoint was stored in."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stored_dtype: torch.dtype
    source: str


def load_pretrained(source: str) -> Pretrained:
    """Load a folder or a hub id; weights are upcast to fp32 (exact from bf16 and fp16).

    Raises:
        GermlineError: there is no such model, or its files cannot be read.
    """
    with _explained(source):
        config = AutoConfig.from_pretrained(source)
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    if getattr(config, "quantization_config", None) is not None:
        raise GermlineError(
            f"model: {source!r} is quantised; evolution strategies need its float weights here"
        )
    model.eval().requires_grad_(requires_grad=False)
    stored = getattr(config, "dtype", None)
    return Pretrained(
        model, tokenizer, stored if isinstance(stored, torch.dtype) else torch.float32, source
    )


def load_tokenizer(source: str) -> tuple[PreTrainedTokenizerBase, int | None]:
    """Load what makes prompts, without the weights, and how many tokens the model takes, if known.

    Raises:
        GermlineError: there is no such model, or its files cannot be read.
    """
    with _explained(source):
        config = AutoConfig.from_pretrained(source)
        tokenizer = AutoTokenizer.from_pretrained(source)
    text = config.get_text_config()
    return tokenizer, getattr(text, "max_position_embeddings", None)


@contextmanager
def _explained(source: str) -> Iterator[None]:
    """Load files of a model quietly, and say what is wrong with them."""
    looks_local = source.startswith((".", "/", "~")) or Path(source).exists()
    if looks_local and not (Path(source).expanduser() / "config.json").is_file():
        raise GermlineError(
            f"model: {source!r} has no config.json: give a Hugging Face model folder, "
            f"a hub id, or 'nano'"
        )
    # A bar per file drawn over the live view helps nobody; loading a big model is announced by the
    # command line.
    disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        where = "" if Path(source).exists() else "is no folder here, and as a Hugging Face id it "
        raise GermlineError(f"model: {source!r} {where}cannot be loaded: {error}") from error


def save_pretrained(
    pretrained: Pretrained, masters: dict[str, torch.Tensor], folder: Path, dtype: torch.dtype
) -> None:
    """Write masters, rounded to dtype, as a folder that plain `transformers` loads."""
    model = pretrained.model
    config = type(model.config).from_dict(model.config.to_dict())
    config.dtype = dtype
    with torch.device("meta"):
        shell = AutoModelForCausalLM.from_config(config, dtype=dtype)
    rounded = {name: tensor.detach().cpu().to(dtype) for name, tensor in masters.items()}
    shell.load_state_dict(rounded, strict=False, assign=True)
    shell.tie_weights()
    shell.generation_config = model.generation_config
    shell.save_pretrained(folder)
    pretrained.tokenizer.save_pretrained(folder)
