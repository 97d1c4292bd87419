"""Settings of engines, which hold a copy of the weights, and of the fleet of a run."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from germline.config.base import KindOf, KindSection, Section
from germline.registry import register


class EngineBase(KindSection):
    """Base of all engines."""

    has_own_model: ClassVar[bool] = False
    """Whether the engine has a model of its own, so that `model` is not used."""
    is_served: ClassVar[bool] = False
    """Whether an inference engine generates, which has a serving copy of its own."""


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
    """Serving dtype. `auto`: the checkpoint's on a GPU; on a CPU float32, or bfloat16 if the
    processor multiplies it (AVX512-BF16, AMX), the model has 100 million weights and nothing
    backpropagates. Searched tensors also have fp32 masters; a checkpoint that the dtype cannot
    represent stays in host memory, for exports."""
    master_device: Literal["device", "host"] = "device"
    """Where the fp32 masters live: the engine's device (fast) or the host (least device memory)."""
    members_per_batch: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Members of a dense space (`full`) in one forward pass, each with its own copy of the searched
    weights; `auto`: as many copies as 64 MiB hold. Another number may change the last bits."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; default: PyTorch's choice. 1 is faster where other programs use the cores.
    Another number may change the last bits."""


@register("engine", "germline.engines.vllm.engine:VllmEngine")
class Vllm(EngineBase):
    """A model that vLLM serves in this process."""

    kind: Literal["vllm"] = "vllm"
    is_served = True
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Serving dtype; `auto`: float32 without a GPU, otherwise the checkpoint's."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; default: PyTorch's choice."""
    adapters: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Members evaluated at once as adapters (vLLM's max_loras); `auto`: as many as fit into a tenth
    of the memory, at most 64."""
    options: dict[str, Any] = Field({})
    """Further arguments of `vllm.LLM`, such as `{max_model_len: 4096}` or `gpu_memory_utilization`,
    which go first. By default the KV cache has 1 GB on a CPU, and adapters have the smallest
    `max_lora_rank` that is enough for the space."""

    @field_validator("options")
    @classmethod
    def _runs_in_one_process(cls, options: dict[str, Any]) -> dict[str, Any]:
        others = ("parallel_size", "distributed_executor_backend")
        if sharded := [name for name in options if name.endswith(others)]:
            raise ValueError(
                f"members are computed in one process, not with {sharded[0]}: use an SGLang "
                "server with --tp-size"
            )
        return options


@register("engine", "germline.engines.sglang.engine:SglangEngine")
class Sglang(EngineBase):
    """A model that an SGLang server serves: a running server, or one that the run starts."""

    kind: Literal["sglang"] = "sglang"
    is_served = True
    base_url: str | None = Field(None, pattern="^https?://")
    """URL of a running server, such as `http://127.0.0.1:30000` (docs/engines.md)."""
    launch: bool = False
    """Start a server on this machine, on a free port, and stop it with the run."""
    python: str | None = Field(None, min_length=1)
    """Interpreter that has SGLang; default: the run's. With `launch`."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` and so on; `auto`: a GPU if there is one. With `launch`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Serving dtype; `auto`: that of the server at `base_url`; for a launched server float32 on a
    CPU and the checkpoint's on a GPU."""
    threads: int | None = Field(None, ge=1)
    """CPU threads of the server; default: SGLang's choice. With `launch`."""
    adapters: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Members loaded into the server as adapters at once; `auto`: all of a microbatch. Also the
    adapters in one batch of a launched server; `auto`: 16."""
    options: tuple[str, ...] = ()
    """Further flags of `sglang.launch_server`, such as `[--tp-size, '2']`, which go first. With
    `launch`."""
    startup_timeout_s: float = Field(600.0, gt=0, le=1e6)
    """Longest wait for a server to start, in seconds. With `launch`."""
    timeout_s: float = Field(600.0, gt=0, le=1e6)
    """Longest wait for one response of the server, in seconds."""
    retry_timeout_s: float = Field(60.0, ge=0, le=1e6)
    """How long an unreachable server is retried, in seconds; then the run stops and can be
    resumed."""

    @model_validator(mode="after")
    def _there_is_one_server(self) -> "Sglang":
        if self.launch == (self.base_url is not None):
            raise ValueError(
                "set either engine.base_url to a running server's URL (http://127.0.0.1:30000), or "
                "engine.launch=true, and the run starts one"
            )
        return self


EngineConfig = Annotated[EngineBase, KindOf("engine", default="inprocess")]


class MicrobatchSettings(Section):
    """The fixed size of microbatches: batches have the same shapes on any number of engines."""

    members: int | None = Field(None, ge=1)
    """Members per microbatch; default: as many as `rows` allows."""
    rows: int = Field(1024, ge=1)
    """Rows per microbatch (members x examples) where `members` is not set."""
    examples: int = Field(256, ge=1)
    """Examples per microbatch."""


class FleetBase(KindSection):
    """Settings of every fleet: its engines, and what to do when they are slow or hang."""

    engines: int = Field(1, ge=1)
    """Engines that share the microbatches of a generation; several on this machine run in processes
    of their own. Their number changes no bit of a run on equal machines. Set `engine.threads` to
    the cores divided by the engines, and keep it."""
    quorum: float = Field(1.0, gt=0.5, le=1)
    """Share of the members with which a generation may close: the others get 50 % more time and are
    then dropped (utility 0). Two runs may then differ, as machines do; each is replayed exactly."""
    job_timeout_s: float | None = Field(None, gt=0, le=1e6)
    """A remote engine is started again when a job, such as a microbatch, takes longer, in seconds.
    `null`: no limit."""

    @property
    def in_process(self) -> bool:
        """Whether the only engine of the run is in this process."""
        return self.kind == "local" and self.engines == 1

    @property
    def is_elsewhere(self) -> bool:
        """Whether engines may be on other machines."""
        return getattr(self, "address", None) is not None


@register("fleet")
class Local(FleetBase):
    """One engine in this process, or several on this machine in processes of their own.

    With `engine.device=auto`, several engines take the GPUs in turn.
    """

    kind: Literal["local"] = "local"


@register("fleet")
class Ray(FleetBase):
    """Engines as Ray actors, on this machine or on the hosts of a cluster."""

    kind: Literal["ray"] = "ray"
    address: str | None = Field(None, min_length=1)
    """Address of a running cluster: `auto` on one of its machines, or host:port of its head node.
    Default: Ray is started on this machine, and stopped with the run."""
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field({"CPU": 1.0}, min_length=1)
    """Resources that one engine needs on one node, as Ray names them: `{CPU: 4, GPU: 1}`; `memory`
    is in bytes."""
    placement_timeout_s: float = Field(30.0, gt=0, le=1e6)
    """Longest wait for resources, at the start for all engines and later while none has any, in
    seconds; longer where the cluster has to grow first."""


FleetConfig = Annotated[Local | Ray, KindOf("fleet", default="local")]
