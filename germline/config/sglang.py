"""Settings of an SGLang server as engine: one that runs already, or one of the run's own."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from germline.config.engines import EngineBase
from germline.config.validators import check_server_settings
from germline.registry import register

LAUNCHED_ONLY = ("python", "device", "threads", "options", "startup_timeout_s")


@register("engine", "germline.engines.sglang.engine:SglangEngine")
class Sglang(EngineBase):
    """A model that an SGLang server plays: at a URL, or started by the run itself."""

    kind: Literal["sglang"] = "sglang"
    base_url: str | None = Field(
        None,
        pattern="^https?://",
        description=(
            "Where a server listens, such as `http://127.0.0.1:30000`, started as docs/engines.md "
            "says."
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
            "Interpreter of the environment SGLang is installed in; default: this one. With "
            "`launch`."
        ),
    )
    device: str = Field(
        "auto",
        description=(
            "`cpu`, `cuda`, `cuda:1`, ...; `auto` takes a GPU when there is one. With `launch`."
        ),
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description=(
            "Serving dtype; `auto`: what the server at `base_url` has; of a launched one, float32 "
            "on a CPU, the checkpoint's on a GPU. Masters are always fp32."
        ),
    )
    threads: int | None = Field(
        None, ge=1, description="CPU threads of the server; default: its own choice. With `launch`."
    )
    adapters: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description=(
            "Most members the server holds as adapters at once; others are handed over when those "
            "are done. `auto`: all of a microbatch. A launched server plays as many in one batch; "
            "`auto`: 16."
        ),
    )
    options: tuple[str, ...] = Field(
        (),
        description=(
            "More flags of `sglang.launch_server`, such as `[--tp-size, '2']`; they win over those "
            "the engine chooses. With `launch`."
        ),
    )
    startup_timeout_s: float = Field(
        600.0, gt=0, description="Longest wait for a server to start, in seconds. With `launch`."
    )
    timeout_s: float = Field(
        600.0, gt=0, description="Longest wait for one answer of the server, in seconds."
    )
    retry_timeout_s: float = Field(
        60.0,
        ge=0,
        description=(
            "How long a server that is lost in the middle of a run is asked again, in seconds; "
            "then the run stops and can be resumed."
        ),
    )

    @model_validator(mode="after")
    def _there_is_one_server(self) -> "Sglang":
        if self.launch == (self.base_url is not None):
            found = f"base_url={self.base_url} and launch={str(self.launch).lower()}"
            raise ValueError(
                f"{found}: name a server that runs (engine.base_url=http://127.0.0.1:30000), or "
                "let the run start its own (engine.launch=true)"
            )
        check_server_settings(self, self.base_url, *LAUNCHED_ONLY)
        return self
