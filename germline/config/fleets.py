"""Settings of fleets: how many engines a run has, and the size of the work they are sent."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from germline.config.base import KindOf, KindSection, Section, in_order
from germline.registry import register


class MicrobatchSettings(Section):
    """The fixed size of microbatches: batches have the same shapes on any number of engines."""

    members: int | None = Field(None, ge=1)
    """Members per microbatch; default: as many as `rows` allows."""
    rows: int = Field(1024, ge=1)
    """Rows per microbatch (members x examples) where `members` is not set."""
    examples: int = Field(256, ge=1)
    """Examples per microbatch."""


Devices = Annotated[
    Literal["auto"] | tuple[str, ...],
    BeforeValidator(
        lambda value: (value,) if isinstance(value, str) and value != "auto" else value
    ),
]


class FleetBase(KindSection):
    """Settings of every fleet: its engines, and what to do when they are slow or hang."""

    engines: int = Field(1, ge=1)
    """Engines that share the microbatches of a generation; several on this machine run in processes
    of their own. Their number changes no bit of a run on equal machines. Set `engine.threads` to
    the cores divided by the engines, and keep it."""
    quorum: float = Field(1.0, gt=0.5, le=1)
    """Share of the members with which a generation may close: the others get 50 % more time and are
    then dropped (utility 0). Two runs may then differ, as machines do; each is replayed exactly."""
    hang_factor: float | None = Field(10.0, ge=2)
    """A remote engine is started again when a job takes this many times longer than the slowest job
    of its kind and size so far. `null`: no limit."""
    hang_timeout_s: float = Field(120.0, gt=0, le=1e6)
    """Shortest time after which a remote engine can count as hung, in seconds."""

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
    """One engine in this process, or several on this machine in processes of their own."""

    kind: Literal["local"] = "local"
    devices: Devices = "auto"
    """A device for each engine, such as `[cuda:0, cuda:1]`. `auto`: the GPUs in turn where
    `engine.device` is `auto` and there are GPUs, else `engine.device` for all."""

    @model_validator(mode="after")
    def _one_device_for_each(self) -> "Local":
        if self.devices != "auto" and len(self.devices) != self.engines:
            raise ValueError(
                f"devices names {len(self.devices)} devices for engines={self.engines}: name one "
                "for each engine, or use devices=auto"
            )
        return self


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
    min_engines: int | None = Field(None, ge=1)
    """Engines that must have loaded before the run begins; the others join between two generations.
    Default: all engines."""
    placement_timeout_s: float = Field(30.0, gt=0, le=1e6)
    """Longest wait for resources while too few engines have any, in seconds; longer where the
    cluster has to grow first."""

    _order = in_order("min_engines", "engines")


FleetConfig = Annotated[Local | Ray, KindOf("fleet", default="local")]
