"""Settings of fleets: how many engines move together, and how work is cut for them."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from germline.config.sections import Section, named


class Cell(Section):
    """Work is cut into cells of fixed size: the same batch shapes, whoever computes them."""

    members: int | None = Field(
        None, ge=1, description="Members per cell; default: as many as `rows` allows."
    )
    rows: int = Field(
        1024, ge=1, description="Rows per cell (members x examples) where `members` is left open."
    )
    examples: int = Field(256, ge=1, description="Examples per cell.")


def _devices(value: object) -> object:
    if value == "auto" or isinstance(value, tuple):
        return value
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("must be `auto` or a list of devices such as [cuda:0, cuda:1]")
    return tuple(names)


Devices = Annotated[Literal["auto"] | tuple[str, ...], BeforeValidator(_devices)]


class Local(Section):
    """One engine in this process, or several on this machine in processes of their own."""

    kind: Literal["local"] = "local"
    engines: int = Field(
        1,
        ge=1,
        description=(
            "Engines that share the cells of a generation; more than one run in processes of "
            "their own. Their number changes no bit of a run: each uses `engine.threads` CPU "
            "threads, so set that to the cores divided by the engines, and keep it."
        ),
    )
    devices: Devices = Field(
        "auto",
        description=(
            "A device for each engine, such as `[cuda:0, cuda:1]`; `auto` takes the GPUs in turn "
            "where `engine.device` is `auto` and there are any, else `engine.device` for all."
        ),
    )

    @model_validator(mode="after")
    def _one_device_for_each(self) -> "Local":
        if self.devices != "auto" and len(self.devices) != self.engines:
            raise ValueError(
                f"devices names {len(self.devices)} devices for engines={self.engines}: name one "
                "for each engine (a device may stand several times), or use devices=auto"
            )
        return self


FleetConfig = Annotated[Local, named("local")]
