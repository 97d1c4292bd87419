"""Settings of engines: the device of a copy of the weights, and how it is served."""

from typing import Annotated, Literal

from pydantic import Field

from germline.config.base import KindOf, KindSection
from germline.registry import register


class EngineBase(KindSection):
    """Settings of every engine."""

    @property
    def has_own_model(self) -> bool:
        """Whether the engine has a model of its own, so that `model` is not used."""
        return False

    @property
    def is_served(self) -> bool:
        """Whether an inference engine generates, which has a serving copy of its own."""
        return False


@register("engine", "germline.engines.toy:ToyEngine")
class Toy(EngineBase):
    """A character model of a few thousand weights; milliseconds, for tests and bug reports."""

    kind: Literal["toy"] = "toy"

    @property
    def has_own_model(self) -> bool:
        """Whether the engine has a model of its own: the toy engine does."""
        return True


@register("engine", "germline.engines.inprocess:InProcessEngine")
class InProcess(EngineBase):
    """A Hugging Face causal language model in this process."""

    kind: Literal["inprocess"] = "inprocess"
    device: str = Field(
        "auto", description="`cpu`, `cuda`, `cuda:1`, ...; `auto` takes a GPU when there is one."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description=(
            "Serving dtype; `auto`: float32 on CPU, the checkpoint's on a GPU. Searched tensors "
            "also have fp32 masters. Frozen tensors have the serving copy only; a checkpoint that "
            "it cannot represent (fp32 or fp16 in bfloat16) stays in host memory, for exports."
        ),
    )
    master_device: Literal["device", "host"] = Field(
        "device",
        description=(
            "Where the fp32 masters live: on the engine's device (fast) or on the host (least "
            "device memory)."
        ),
    )
    members_per_batch: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description=(
            "Members of a dense space (`full`) evaluated in one forward pass, each with its own "
            "copy of the searched weights; 1: one after another. `auto`: as many copies as 64 MiB "
            "hold. Part of what fixes the bits of an evaluation."
        ),
    )
    threads: int | None = Field(
        None,
        ge=1,
        description=(
            "CPU threads; default: PyTorch's choice. Take 1 where other programs use the cores: "
            "threads that wait for each other are slow there. Part of what fixes the bits of an "
            "evaluation."
        ),
    )


EngineConfig = Annotated[EngineBase, KindOf("engine", default="inprocess")]
