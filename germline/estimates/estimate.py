"""Estimate what a config needs on a machine, whether it fits, and which settings would fit."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from germline.config import Config, InProcess, load_config
from germline.engines.decode_batch import SMALLEST_BATCH
from germline.estimates.hardware import Hardware
from germline.estimates.memory import (
    Part,
    Place,
    memory_parts,
    snapshot_bytes,
    total,
    wire_bytes,
)
from germline.estimates.model_shape import ModelShape
from germline.estimates.scorer_memory import scorer_parts
from germline.estimates.seconds import Seconds, run_s, seconds_of
from germline.estimates.workload import TextLengths, Workload, workload
from germline.types import GermlineError

FEWEST_ROWS = SMALLEST_BATCH
"""Smaller microbatches are padded to this number of rows."""

MANY_ROWS = 128
"""Rows of the recipes for 80 GB: down to these, a smaller microbatch is preferred to masters on the
host, whose transfers no estimate of time counts; below, a pass reads the weights for few texts."""


@dataclass(frozen=True)
class Estimate:
    """The memory and time that a run needs on a machine.

    Attributes:
        work: the work of a generation.
        parts: the parts of the memory.
        seconds: the parts of the time of a generation.
        snapshot_bytes: size of one snapshot.
        wire_bytes: bytes per member and generation on the network, without text.
        machine: available memory and speed.
        run_s: seconds of the whole run, with its calibration and held-out scores.
    """

    work: Workload
    parts: tuple[Part, ...]
    seconds: Seconds
    snapshot_bytes: int
    wire_bytes: float
    machine: Hardware
    run_s: float = 0.0

    def needed(self, place: Place) -> float:
        """Return the peak bytes in one place; on a CPU all of them are on the host."""
        if self.machine.on_gpu:
            return total(list(self.parts), place)
        parts = [Part(part.name, part.bytes, "host", part.phase) for part in self.parts]
        return total(parts, "host") if place == "host" else 0.0

    def available(self, place: Place) -> float:
        """Return the bytes that are available in one place."""
        return self.machine.memory_bytes if place == "device" else self.machine.host_bytes

    @property
    def fits(self) -> bool:
        """Whether every place has enough memory."""
        return all(self.needed(place) <= self.available(place) for place in ("device", "host"))


def estimate(config: Config, shape: ModelShape, texts: TextLengths, machine: Hardware) -> Estimate:
    """Compute what a config needs on a machine.

    Raises:
        GermlineError: the space selects no tensor of this model, or the config.json of a scorer
            cannot be read.
    """
    work = workload(config, shape, texts, on_gpu=machine.on_gpu)
    return Estimate(
        work=work,
        parts=(
            *memory_parts(config, shape, work),
            *scorer_parts(config, texts, on_gpu=machine.on_gpu),
        ),
        seconds=seconds_of(shape, work, machine),
        snapshot_bytes=snapshot_bytes(work),
        wire_bytes=wire_bytes(work),
        machine=machine,
        run_s=run_s(config, shape, work, machine),
    )


def what_fits(
    config: Config, shape: ModelShape, texts: TextLengths, machine: Hardware
) -> tuple[str, ...]:
    """Return the first overrides with which a config fits a machine; empty if none do.

    They are tried in this order: another dtype, microbatches of `MANY_ROWS` or more, masters on the
    host, smaller microbatches, an adapter; each override alone, and then together with all earlier
    ones, of which those that the config does not need are left out.
    """
    scorers = tuple(scorer_parts(config, texts, on_gpu=machine.on_gpu))

    def fits(overrides: tuple[str, ...]) -> bool:
        try:
            changed = load_config(config.model_dump(), list(overrides))
            work = workload(changed, shape, texts, on_gpu=machine.on_gpu)
        except GermlineError:
            return False
        parts = (*memory_parts(changed, shape, work), *scorers)
        return Estimate(work, parts, Seconds(0.0, 0.0, 0.0, 0.0, 0.0), 0, 0.0, machine).fits

    kept: tuple[str, ...] = ()
    for alternatives in _changes(config, machine):
        for changes in alternatives:
            for overrides in dict.fromkeys((changes, kept + changes)):
                if fits(overrides):
                    return _needed(overrides, fits)
        kept += alternatives[-1]
    return ()


def _needed(overrides: tuple[str, ...], fits: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...]:
    """Leave out overrides, the latest first, as long as the config fits with the others."""
    for one in reversed(overrides):
        rest = tuple(other for other in overrides if other != one)
        if rest and fits(rest):
            return _needed(rest, fits)
    return overrides


def _changes(config: Config, machine: Hardware) -> Iterator[list[tuple[str, ...]]]:
    """Yield the alternatives of one setting after another, the smallest change first."""
    dtype = getattr(config.engine, "dtype", "auto")
    if dtype == "float32" or (dtype == "auto" and not machine.on_gpu):
        yield [("engine.dtype=bfloat16" if machine.has_bfloat16 else "engine.dtype=float16",)]
    rows = _smaller_rows(config)
    many = [one for n, one in rows if n >= MANY_ROWS]
    if many:
        yield many
    if (
        isinstance(config.engine, InProcess)
        and machine.on_gpu
        and config.engine.master_device == "device"
    ):
        yield [("engine.master_device=host",)]
    if few := [one for n, one in rows if n < MANY_ROWS]:
        yield few
    if config.space.kind != "lora":
        yield [("space=lora",)]


def _smaller_rows(config: Config) -> list[tuple[int, tuple[str, ...]]]:
    """Return numbers of rows below those of a config, and the overrides that set them."""
    if config.engine.is_served or config.microbatch.members is not None:
        return []
    largest = 1 << int(math.log2(config.microbatch.rows))
    examples = config.microbatch.examples
    rows = [largest >> n for n in range(1, largest.bit_length()) if largest >> n >= FEWEST_ROWS]
    return [(n, (f"microbatch.rows={n}", f"microbatch.examples={min(n, examples)}")) for n in rows]
