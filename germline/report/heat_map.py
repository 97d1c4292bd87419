"""A heat map of runs over two settings, as data: `plots` draws it, and pages show it as a table."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from germline.report.text_format import number

EMPTY = "#e4e4e4"
"""The color of a cell without scores."""


@dataclass(frozen=True)
class Cell:
    """The runs with a pair of values, or with values in a pair of intervals.

    Attributes:
        scores: held-out scores of runs that got this far.
        broken: number of these runs whose answers are broken (`evaluation.behavior`).
        hacked: number of these runs whose answers earn more than at the start, although they are
            broken or the metric is worse.
        stopped: number of runs that were stopped earlier.
        is_marked: whether the pair that `germline probe` recommends is here.
    """

    scores: Sequence[float] = ()
    broken: int = 0
    hacked: int = 0
    stopped: int = 0
    is_marked: bool = False

    @property
    def mean(self) -> float:
        """The mean score; NaN without one."""
        return statistics.fmean(self.scores) if self.scores else math.nan

    @property
    def lines(self) -> list[str]:
        """What the cell says, in lines of a few characters."""
        spread = f" ± {number(statistics.stdev(self.scores))}" if len(self.scores) > 1 else ""
        counts = {"broken": self.broken, "hacked": self.hacked}
        runs = len(self.scores)
        return [
            *(["◆ probe"] if self.is_marked else []),
            *([f"{number(self.mean)}{spread}"] if runs else []),
            *(f"{count}/{runs} {name}" for name, count in counts.items() if count),
            *([f"{self.stopped} stopped"] if self.stopped else []),
        ]


@dataclass(frozen=True)
class HeatMap:
    """Cells by row and column; `columns` and `rows` are the values, or intervals of values."""

    title: str
    x: str
    y: str
    columns: Sequence[str]
    rows: Sequence[str]
    cells: Sequence[Sequence[Cell]]
    higher_is_better: bool

    @property
    def means(self) -> list[float]:
        """The means of the cells that have scores."""
        return [cell.mean for row in self.cells for cell in row if cell.scores]

    def is_best(self, cell: Cell) -> bool:
        """Whether a cell has the best mean, perhaps with others."""
        best = max if self.higher_is_better else min
        return bool(cell.scores) and cell.mean == best(self.means)

    def shade(self, cell: Cell) -> float:
        """Return how good a cell is, from 0 (worst mean) to 1 (best); NaN without scores."""
        if not cell.scores:
            return math.nan
        low, high = min(self.means), max(self.means)
        share = (cell.mean - low) / (high - low) if high > low else 0.0
        return share if self.higher_is_better else 1 - share

    def tone(self, cell: Cell) -> str:
        """Return the color of a cell, on which black text is legible."""
        if not cell.scores:
            return EMPTY
        return "#" + "".join(f"{round(255 - self.shade(cell) * by):02x}" for by in (105, 60, 30))
