"""What vLLM must support for a run: its version, the parts that are used, and the model's heads."""

from typing import Any

from transformers import PretrainedConfig

from germline.types import GermlineError

OLDEST = (0, 32)
"""The oldest supported version and the newest tested one; newer versions are accepted."""

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Of `CPUAttentionBackend.get_supported_head_sizes` in vLLM 0.32."""


def check_version(version: str) -> None:
    """Refuse a version of vLLM that is too old; builds of a working copy have no number and pass.

    Raises:
        GermlineError: the version is too old.
    """
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if len(numbers) == 2 and (0, 1) < numbers < OLDEST:
        raise GermlineError(
            f"vLLM {version} is too old for engine.kind=vllm: install {_dotted(OLDEST)} or newer "
            "(pip install 'germline[vllm]')"
        )


def check_head_size(config: PretrainedConfig) -> None:
    """Refuse a model whose attention heads vLLM cannot serve on a CPU.

    Raises:
        GermlineError: naming the model, its head size and the engines that can serve it.
    """
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", None)
    if not heads or getattr(text, "kv_lora_rank", None):  # latent attention has another rule
        return
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    if size not in CPU_HEAD_SIZES:
        raise GermlineError(
            f"model={config.name_or_path}: its attention heads have {size} dimensions (head_dim), "
            f"and vLLM on a CPU serves only {', '.join(map(str, CPU_HEAD_SIZES))}: use "
            "engine.kind=inprocess or engine.kind=sglang"
        )


def import_part(owner: Any, name: str, version: str) -> Any:
    """Return an attribute of an object of vLLM.

    Raises:
        GermlineError: this version of vLLM does not have it.
    """
    if not hasattr(owner, name):
        raise missing_part_error(f"{type(owner).__name__}.{name}", version)
    return getattr(owner, name)


def missing_part_error(name: str, version: str) -> GermlineError:
    """Return the error for a version of vLLM that lacks a part."""
    return GermlineError(
        f"vLLM {version} has no {name}, without which engine.kind=vllm cannot work: use vLLM "
        f"{_dotted(OLDEST)}, or a newer germline"
    )


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
