"""Print rows: as a table on a terminal, as tab-separated lines in a pipe."""

from collections.abc import Sequence

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from germline.cli import text_format

FOLDED = ("meaning", "remark", "run", "model")
"""Columns of prose and paths, which are wrapped; the other columns are short and never wrapped."""


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their headings; without headings when the output is not a terminal."""
    console = Console()
    if not console.is_terminal:
        for row in rows:
            typer.echo("\t".join(_one_line(cell) for cell in row))
        return
    console.print(layout_table(columns, rows))


def layout_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Lay out rows for a terminal: on a narrow one the columns of `FOLDED` are wrapped."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for place, name in enumerate(columns):
        made.add_column(
            name,
            no_wrap=name not in FOLDED,
            overflow="fold",
            style="bold" if place == 0 else "",
        )
    for row in rows:
        made.add_row(*(Text(text_format.escape_control_characters(cell)) for cell in row))
    return made


def _one_line(cell: str) -> str:
    return " ".join(text_format.escape_control_characters(cell).split())
