"""Engines that sleep instead of generating, so that many of them run on few cores.

Everything else in a fleet of them is real: processes, pickles, pipes, graders, digests and the
updates of a toy model.
"""

import time
from collections.abc import Sequence

import numpy as np

from germline.config import Config
from germline.protocols import Engine
from germline.protocols.wrappers import EngineWrapper
from germline.run.build_parts import make_engine
from germline.signal_types import UpdateSize
from germline.types import (
    Completion,
    Decoding,
    Example,
    MeanUpdate,
    Perturbation,
    Update,
    as_seed_perturbation,
)


class SleepingEngine(EngineWrapper):
    """An engine that sleeps instead of generating.

    Args:
        inner: the engine that holds the weights.
        microbatch_s: median seconds of a microbatch.
        update_s: seconds added to every update of `inner`.
    """

    def __init__(self, inner: Engine, microbatch_s: float, update_s: float) -> None:
        super().__init__(inner)
        self.microbatch_s = microbatch_s
        self.update_s = update_s

    def generate(
        self,
        members: Sequence[Perturbation | None],
        examples: Sequence[Example],
        decoding: Decoding,
    ) -> list[list[Completion]]:
        """Sleep for a time drawn from the seed of the first member; return a fixed completion."""
        first = members[0]
        time.sleep(0.0 if first is None else seconds(first, self.microbatch_s))
        completion = Completion("7", (55, 2), "eos", 8)
        return [[completion for _ in examples] for _ in members]

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Apply the update, and sleep."""
        time.sleep(self.update_s)
        return self.inner.apply(update)


def seconds(first: Perturbation, microbatch_s: float) -> float:
    """Draw the seconds of a microbatch from its first member: mostly half to twice the median."""
    member = as_seed_perturbation(first)
    chance = np.random.default_rng([member.generation, member.direction])
    return float(microbatch_s * chance.lognormal(0.0, 0.4))


def load(config: Config, microbatch_s: float, update_s: float) -> SleepingEngine:
    """Load the engine of a config and wrap it."""
    return SleepingEngine(make_engine(config), microbatch_s, update_s)
