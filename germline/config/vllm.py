"""Settings of the engine `vllm`."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from germline.config.engines import EngineBase
from germline.config.validators import check_server_settings
from germline.registry import register


@register("engine", "germline.engines.vllm.engine:VllmEngine")
class Vllm(EngineBase):
    """A model that vLLM serves: in this process, or behind the URL of its OpenAI server."""

    kind: Literal["vllm"] = "vllm"
    base_url: str | None = Field(
        None,
        pattern="^https?://",
        description=(
            "The OpenAI server that plays, such as `http://127.0.0.1:8000`; default: vLLM in this "
            "process. A server must have been started as docs/engines.md says."
        ),
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description=(
            "Serving dtype; `auto`: float32 where there is no GPU, else the checkpoint's. A server "
            "must have been started with it. Masters are always fp32."
        ),
    )
    tensor_parallel: int = Field(
        1,
        ge=1,
        description="GPUs one copy of the model is spread over. A server's is its own affair.",
    )
    threads: int | None = Field(
        None, ge=1, description="CPU threads; default: PyTorch's choice. A server has its own."
    )
    adapters: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description=(
            "Members that play at once as adapters (vLLM's max_loras); others wait for their "
            "place. `auto`: up to 64, as far as a tenth of the memory goes; a server's own."
        ),
    )
    adapter_rank: int | None = Field(
        None,
        ge=1,
        description=(
            "Room for adapters up to this rank (vLLM's max_lora_rank: 1, 8, 16, 32, 64, 128, 256, "
            "320 or 512); default: the least that holds those of the space."
        ),
    )
    gpu_memory_utilization: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of a GPU's memory for vLLM (gpu_memory_utilization); default: vLLM's.",
    )
    kv_cache_gb: float | None = Field(
        None,
        gt=0,
        description=(
            "Memory for the keys and values of texts at work, in GB of 10^9 bytes; default: 1 on a "
            "CPU, what is left of `gpu_memory_utilization` on a GPU."
        ),
    )
    timeout_s: float = Field(
        600.0,
        gt=0,
        description="Longest wait for one answer of a server, in seconds; beyond it, it hangs.",
    )
    retry_timeout_s: float = Field(
        60.0,
        ge=0,
        description=(
            "How long a server that does not answer is asked again, in seconds; then the run stops "
            "and can be resumed."
        ),
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="More arguments of `vllm.LLM`, as they are, such as `{max_model_len: 4096}`.",
    )

    @model_validator(mode="after")
    def _a_server_was_started_with_settings_of_its_own(self) -> "Vllm":
        its_own = (
            "tensor_parallel",
            "threads",
            "adapters",
            "adapter_rank",
            "gpu_memory_utilization",
        )
        check_server_settings(self, self.base_url, *its_own, "kv_cache_gb", "options")
        waits = self.changed("timeout_s", "retry_timeout_s")
        if self.base_url is None and waits:
            raise ValueError(
                f"{waits[0]}={getattr(self, waits[0]):g} would be ignored without base_url, as "
                "there is no server to wait for: drop it"
            )
        return self
