"""Engines that move together: one engine in this process is the smallest fleet."""

from collections.abc import Sequence

from germline.config import Cell
from germline.protocols import Engine
from germline.rollout import Graders, members_per_cell, play
from germline.types import Decoding, Evaluation, Example, Population, Update


class LocalFleet:
    """One engine in this process, with the graders beside it."""

    def __init__(self, engine: Engine, graders: Graders, cell: Cell) -> None:
        self.engine = engine
        self.graders = graders
        self.cell = cell

    def evaluate(
        self, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Play the batch with every member and grade it."""
        return play(self.engine, self.graders, population.members, batch, self.cell, decoding)

    def evaluate_centre(self, examples: Sequence[Example], decoding: Decoding) -> Evaluation:
        """Play with the centre alone: one member, so a cell holds as many rows in examples."""
        members = members_per_cell(self.cell, self.cell.examples)
        wide = Cell(members=1, examples=members * self.cell.examples)
        return play(self.engine, self.graders, [None], examples, wide, decoding)

    def apply(self, update: Update) -> None:
        """Apply the update."""
        self.engine.apply(update)

    def digest(self) -> str:
        """Return the digest of the masters."""
        return self.engine.weights.digest()
