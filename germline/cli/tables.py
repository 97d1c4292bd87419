"""Print rows: as a table on a terminal, as tab-separated lines in a pipe.

A terminal that is too narrow for the table shows a paragraph per row. Paths are never wrapped, so
that they can be copied.
"""

from collections.abc import Iterator, Sequence

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from germline.cli import text_format
from germline.cli.word_wrap import wrap_words

PROSE = ("meaning", "remark")
"""Columns that are wrapped; cells of other columns are names, numbers and paths."""

NARROWEST_PROSE, MOST_COLUMNS = 24, 100_000
INDENT = "  "


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], console: Console | None = None
) -> None:
    """Print rows under their headings; in a pipe, two columns explain themselves without."""
    console = console or Console()
    if not console.is_terminal:
        for row in [columns, *rows] if len(columns) > 2 else rows:
            typer.echo("\t".join(_one_line(cell) for cell in row))
        return
    table = _layout_table(columns, rows)
    unbounded = console.options.update(width=MOST_COLUMNS)
    if console.measure(table, options=unbounded).minimum <= console.width:
        console.print(table)
        return
    for row in rows:
        for place, line in enumerate(_paragraph(columns, row, console.width)):
            style = "" if place else "bold"
            console.print(line, style=style, soft_wrap=True, markup=False, highlight=False)


def print_indented(text: str, console: Console | None = None) -> None:
    """Print a sentence with an indent, wrapped between words on a terminal."""
    console = console or Console()
    for line in _wrapped(text, console.width) if console.is_terminal else [INDENT + text]:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def _layout_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Lay out rows for a terminal; columns of `PROSE` take the width that the others leave."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    texts = [[Text(text_format.escape_control_characters(cell)) for cell in row] for row in rows]
    for place, name in enumerate(columns):
        width = max(Text(name).cell_len, *(row[place].cell_len for row in texts), 0)
        made.add_column(
            name,
            no_wrap=name not in PROSE,
            min_width=min(width, NARROWEST_PROSE) if name in PROSE else width,
            overflow="fold",
            style="bold" if place == 0 else "",
        )
    for row in texts:
        made.add_row(*row)
    return made


def _paragraph(columns: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    """Yield the lines of a row: its first cell, and below it the others with their headings."""
    first, *others = map(_one_line, row)
    yield first
    cells = [
        cell if name in PROSE else f"{name} {cell}".strip()
        for name, cell in zip(columns[1:], others, strict=True)
        if cell
    ]
    yield from _wrapped(", ".join(cells), width)


def _wrapped(text: str, width: int) -> list[str]:
    """Indent a text and wrap it between words; a path that is longer than a line stays whole."""
    return wrap_words(INDENT + text, width).split("\n")


def _one_line(cell: str) -> str:
    return " ".join(text_format.escape_control_characters(cell).split())
