"""Settings of the engine `sglang`: a running server, or one that the run starts."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from germline.config.engines import EngineBase
from germline.registry import register


@register("engine", "germline.engines.sglang.engine:SglangEngine")
class Sglang(EngineBase):
    """A model that an SGLang server serves: a running server, or one that the run starts."""

    kind: Literal["sglang"] = "sglang"
    base_url: str | None = Field(
        None,
        pattern="^https?://",
        description=(
            "URL of a running server, such as `http://127.0.0.1:30000`, started as "
            "docs/engines.md says."
        ),
    )
    launch: bool = Field(
        default=False,
        description="Start a server on this machine, on a free port, and stop it with the run.",
    )
    python: str | None = Field(
        None,
        min_length=1,
        description=(
            "Interpreter of the environment in which SGLang is installed; default: the run's. "
            "With `launch`."
        ),
    )
    device: str = Field(
        "auto",
        description=(
            "`cpu`, `cuda`, `cuda:1` and so on; `auto`: a GPU if there is one. With `launch`."
        ),
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description=(
            "Serving dtype; `auto`: that of the server at `base_url`; for a launched server "
            "float32 on a CPU and the checkpoint's on a GPU. Masters are always fp32."
        ),
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads of the server; default: SGLang's choice. With `launch`.",
    )
    adapters: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description=(
            "Members loaded into the server as adapters at once; further members are loaded when "
            "these are evaluated. `auto`: all of a microbatch. It is also the number of adapters "
            "in one batch of a launched server; `auto`: 16."
        ),
    )
    options: tuple[str, ...] = Field(
        (),
        description=(
            "Further flags of `sglang.launch_server`, such as `[--tp-size, '2']`; they replace "
            "those that the engine chooses. With `launch`."
        ),
    )
    startup_timeout_s: float = Field(
        600.0, gt=0, description="Longest wait for a server to start, in seconds. With `launch`."
    )
    timeout_s: float = Field(
        600.0, gt=0, description="Longest wait for one response of the server, in seconds."
    )
    retry_timeout_s: float = Field(
        60.0,
        ge=0,
        description=(
            "How long requests to an unreachable server are retried during a run, in seconds; "
            "then the run stops and can be resumed."
        ),
    )

    @property
    def is_served(self) -> bool:
        """Whether an inference engine generates: it does."""
        return True

    @model_validator(mode="after")
    def _there_is_one_server(self) -> "Sglang":
        if self.launch == (self.base_url is not None):
            given = f"base_url={self.base_url} and launch={str(self.launch).lower()}"
            raise ValueError(
                f"{given}: set either engine.base_url to a running server's URL "
                "(http://127.0.0.1:30000) or engine.launch=true, and the run starts one"
            )
        return self
