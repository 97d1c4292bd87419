"""Simulated engines that sleep for a given time, so that many of them run on few cores.

A fleet of them is a real one in everything but playing: processes, pickles, pipes, graders, digests
and updates of a toy.
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


class Clockwork(EngineWrapper):
    """An engine that sleeps while others would play.

    Args:
        inner: whose weights it has.
        cell_s: median seconds of a cell.
        update_s: seconds of an update, besides the inner one's.
    """

    def __init__(self, inner: Engine, cell_s: float, update_s: float) -> None:
        super().__init__(inner)
        self.cell_s = cell_s
        self.update_s = update_s

    def generate(
        self,
        members: Sequence[Perturbation | None],
        examples: Sequence[Example],
        decoding: Decoding,
    ) -> list[list[Completion]]:
        """Sleep as long as the first member says, and answer with a number."""
        first = members[0]
        time.sleep(0.0 if first is None else seconds(first, self.cell_s))
        one = Completion("7", (55, 2), "eos", 8)
        return [[one for _ in examples] for _ in members]

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Apply the update, and sleep."""
        time.sleep(self.update_s)
        return self.inner.apply(update)


def seconds(first: Perturbation, cell_s: float) -> float:
    """Return how long a cell takes, by its first member: half as long to twice as long, mostly."""
    member = as_seed_perturbation(first)
    chance = np.random.default_rng([member.generation, member.direction])
    return float(cell_s * chance.lognormal(0.0, 0.4))


def load(config: Config, cell_s: float, update_s: float) -> Clockwork:
    """Load the engine of a config and wind it up."""
    return Clockwork(make_engine(config), cell_s, update_s)
