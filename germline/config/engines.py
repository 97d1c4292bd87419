"""Settings of engines: the device of a copy of the weights, and how it is served."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from germline.config.base import KindOf, KindSection
from germline.registry import register


class EngineBase(KindSection):
    """Base of all engines.

    Attributes:
        has_own_model: whether the engine has a model of its own, so that `model` is not used.
        is_served: whether an inference engine generates, which has a serving copy of its own.
    """

    has_own_model: ClassVar[bool] = False
    is_served: ClassVar[bool] = False


@register("engine", "germline.engines.toy:ToyEngine")
class Toy(EngineBase):
    """A character model of a few thousand weights; milliseconds, for tests and bug reports."""

    kind: Literal["toy"] = "toy"
    has_own_model = True


@register("engine", "germline.engines.inprocess:InProcessEngine")
class InProcess(EngineBase):
    """A Hugging Face causal language model in this process."""

    kind: Literal["inprocess"] = "inprocess"
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, ...; `auto` takes a GPU when there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Serving dtype; `auto`: float32 on CPU, the checkpoint's on a GPU. Searched tensors also have
    fp32 masters. Frozen tensors have the serving copy only; a checkpoint that it cannot represent
    (fp32 or fp16 in bfloat16) stays in host memory, for exports."""
    master_device: Literal["device", "host"] = "device"
    """Where the fp32 masters live: on the engine's device (fast) or on the host (least device
    memory)."""
    members_per_batch: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Members of a dense space (`full`) evaluated in one forward pass, each with its own copy of
    the searched weights; 1: one after another. `auto`: as many copies as 64 MiB hold. Part of what
    fixes the bits of an evaluation."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; default: PyTorch's choice. Take 1 where other programs use the cores: threads
    that wait for each other are slow there. Part of what fixes the bits of an evaluation."""


@register("engine", "germline.engines.vllm.engine:VllmEngine")
class Vllm(EngineBase):
    """A model that vLLM serves in this process."""

    kind: Literal["vllm"] = "vllm"
    is_served = True
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Serving dtype; `auto`: float32 without a GPU, otherwise the checkpoint's. Masters are always
    fp32."""
    tensor_parallel: int = Field(1, ge=1)
    """Number of GPUs that one copy of the model is sharded over."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; default: PyTorch's choice."""
    adapters: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Members evaluated at once as adapters (vLLM's max_loras); further members wait for a slot.
    `auto`: as many as fit into a tenth of the memory, at most 64."""
    adapter_rank: int | None = Field(None, ge=1)
    """Largest rank of adapters (vLLM's max_lora_rank: 1, 8, 16, 32, 64, 128, 256, 320 or 512);
    default: the smallest value that is enough for the space."""
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """Fraction of a GPU's memory for vLLM (gpu_memory_utilization); default: vLLM's."""
    kv_cache_gb: float | None = Field(None, gt=0)
    """Memory of the KV cache, in GB of 10^9 bytes; default: 1 on a CPU, the rest of
    `gpu_memory_utilization` on a GPU."""
    options: dict[str, Any] = Field({})
    """Further arguments of `vllm.LLM`, such as `{max_model_len: 4096}`; they replace those that the
    engine chooses."""


@register("engine", "germline.engines.sglang.engine:SglangEngine")
class Sglang(EngineBase):
    """A model that an SGLang server serves: a running server, or one that the run starts."""

    kind: Literal["sglang"] = "sglang"
    is_served = True
    base_url: str | None = Field(None, pattern="^https?://")
    """URL of a running server, such as `http://127.0.0.1:30000`, started as docs/engines.md
    says."""
    launch: bool = False
    """Start a server on this machine, on a free port, and stop it with the run."""
    python: str | None = Field(None, min_length=1)
    """Interpreter of the environment in which SGLang is installed; default: the run's. With
    `launch`."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` and so on; `auto`: a GPU if there is one. With `launch`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Serving dtype; `auto`: that of the server at `base_url`; for a launched server float32 on a
    CPU and the checkpoint's on a GPU. Masters are always fp32."""
    threads: int | None = Field(None, ge=1)
    """CPU threads of the server; default: SGLang's choice. With `launch`."""
    adapters: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Members loaded into the server as adapters at once; further members are loaded when these are
    evaluated. `auto`: all of a microbatch. It is also the number of adapters in one batch of a
    launched server; `auto`: 16."""
    options: tuple[str, ...] = ()
    """Further flags of `sglang.launch_server`, such as `[--tp-size, '2']`; they replace those that
    the engine chooses. With `launch`."""
    startup_timeout_s: float = Field(600.0, gt=0, le=1e6)
    """Longest wait for a server to start, in seconds. With `launch`."""
    timeout_s: float = Field(600.0, gt=0, le=1e6)
    """Longest wait for one response of the server, in seconds."""
    retry_timeout_s: float = Field(60.0, ge=0, le=1e6)
    """How long requests to an unreachable server are retried during a run, in seconds; then the run
    stops and can be resumed."""

    @model_validator(mode="after")
    def _there_is_one_server(self) -> "Sglang":
        if self.launch == (self.base_url is not None):
            given = f"base_url={self.base_url} and launch={str(self.launch).lower()}"
            raise ValueError(
                f"{given}: set either engine.base_url to a running server's URL "
                "(http://127.0.0.1:30000) or engine.launch=true, and the run starts one"
            )
        return self


EngineConfig = Annotated[EngineBase, KindOf("engine", default="inprocess")]
