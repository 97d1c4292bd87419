"""Estimate the memory that a config needs on a machine, and whether it fits."""

from dataclasses import dataclass

from germline.config import Config
from germline.estimates.machine import Machine
from germline.estimates.memory import Part, Place, memory_parts, total
from germline.estimates.model_shape import ModelShape
from germline.estimates.scorer_memory import scorer_parts
from germline.estimates.workload import TextLengths, Workload, workload

LESS_MEMORY = (
    "engine.dtype=bfloat16, a smaller microbatch.rows, engine.master_device=host (with a GPU), "
    "space=lora, or a smaller model"
)
"""What needs less memory, in the order in which it changes a run."""


@dataclass(frozen=True)
class Estimate:
    """The memory that a run needs on a machine.

    Attributes:
        work: the work of a generation.
        parts: the parts of the memory.
        machine: the memory that is available.
    """

    work: Workload
    parts: tuple[Part, ...]
    machine: Machine

    @property
    def places(self) -> tuple[Place, ...]:
        """The memories that the machine has."""
        return ("device", "host") if self.machine.on_gpu else ("host",)

    def needed(self, place: Place) -> float:
        """Return the peak bytes in one place; on a CPU all of them are on the host."""
        return total(self.parts, place, on_gpu=self.machine.on_gpu)

    def available(self, place: Place) -> float:
        """Return the bytes that are available in one place."""
        return self.machine.device_bytes if place == "device" else self.machine.host_bytes

    @property
    def lacking(self) -> Place | None:
        """The first place without enough memory; None if the run fits."""
        lacking = (one for one in self.places if self.needed(one) > self.available(one))
        return next(lacking, None)

    @property
    def fits(self) -> bool:
        """Whether every place has enough memory."""
        return self.lacking is None


def estimate(config: Config, shape: ModelShape, texts: TextLengths, machine: Machine) -> Estimate:
    """Compute the memory that a config needs on a machine.

    Raises:
        GermlineError: the space selects no tensor of this model, or the config.json of a scorer
            cannot be read.
    """
    work = workload(config, shape, texts, on_gpu=machine.on_gpu)
    parts = memory_parts(config, shape, work)
    scorers = scorer_parts(config, texts, on_gpu=machine.on_gpu)
    return Estimate(work, (*parts, *scorers), machine)
