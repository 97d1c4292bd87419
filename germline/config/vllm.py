"""Settings of the engine `vllm`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from germline.config.engines import EngineBase
from germline.registry import register


@register("engine", "germline.engines.vllm.engine:VllmEngine")
class Vllm(EngineBase):
    """A model that vLLM serves in this process."""

    kind: Literal["vllm"] = "vllm"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description=(
            "Serving dtype; `auto`: float32 without a GPU, otherwise the checkpoint's. Masters are "
            "always fp32."
        ),
    )
    tensor_parallel: int = Field(
        1,
        ge=1,
        description="Number of GPUs that one copy of the model is sharded over.",
    )
    threads: int | None = Field(None, ge=1, description="CPU threads; default: PyTorch's choice.")
    adapters: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description=(
            "Members evaluated at once as adapters (vLLM's max_loras); further members wait for a "
            "slot. `auto`: as many as fit into a tenth of the memory, at most 64."
        ),
    )
    adapter_rank: int | None = Field(
        None,
        ge=1,
        description=(
            "Largest rank of adapters (vLLM's max_lora_rank: 1, 8, 16, 32, 64, 128, 256, 320 or "
            "512); default: the smallest value that is enough for the space."
        ),
    )
    gpu_memory_utilization: float | None = Field(
        None,
        gt=0,
        le=1,
        description=(
            "Fraction of a GPU's memory for vLLM (gpu_memory_utilization); default: vLLM's."
        ),
    )
    kv_cache_gb: float | None = Field(
        None,
        gt=0,
        description=(
            "Memory of the KV cache, in GB of 10^9 bytes; default: 1 on a CPU, the rest of "
            "`gpu_memory_utilization` on a GPU."
        ),
    )
    options: dict[str, Any] = Field(
        {},
        description=(
            "Further arguments of `vllm.LLM`, such as `{max_model_len: 4096}`; they replace those "
            "that the engine chooses."
        ),
    )

    @property
    def is_served(self) -> bool:
        """Whether an inference engine generates: it does."""
        return True
