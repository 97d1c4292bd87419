"""Rows for people or for programs: a table on a terminal, tab-separated lines in a pipe."""

from collections.abc import Sequence

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from germline.cli import text_format

FOLDED = ("meaning", "run", "model")
"""Columns of prose and paths; the others are short and stay whole."""


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their headings, or without them when nobody is looking."""
    console = Console()
    if not console.is_terminal:
        for row in rows:
            typer.echo("\t".join(_one_line(cell) for cell in row))
        return
    console.print(layout_table(columns, rows))


def layout_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Lay out rows for a terminal: the columns of `FOLDED` give way where it is narrow."""
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
