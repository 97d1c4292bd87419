"""Print sentences, tables and JSON: wrapped for a terminal, plain in a pipe or a file."""

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from germline.evaluation.score_difference import PairedDifference
    from germline.types import HeldOutScore

FLAG = "--json"

INTERRUPTED = 130
"""Exit status of a command ended by Ctrl-C, as shells expect: 128 + SIGINT."""

AsJson = Annotated[bool, typer.Option(FLAG, help="Print one JSON document instead of text.")]

COMMAND = re.compile(r"`[^`\n]*`|(?<=: )germline .*$|\(germline [^()\n]*\)", re.MULTILINE)
"""Commands in a message: a line break in one would be copied with it."""

PROSE = ("meaning", "remark")
"""Columns of tables that are wrapped; cells of others are names, numbers and paths."""

NARROWEST_PROSE, MOST_COLUMNS = 24, 100_000


def wrap_words(text: str, width: int) -> str:
    """Break the lines that are longer than `width` between words, and keep their indent."""
    kept = COMMAND.sub(lambda found: found[0].replace(" ", "\0"), text)
    lines = [
        textwrap.fill(
            line,
            width,
            subsequent_indent=line[: len(line) - len(line.lstrip())],
            break_long_words=False,
            break_on_hyphens=False,
        )
        if len(line) > width
        else line
        for line in kept.split("\n")
    ]
    return "\n".join(lines).replace("\0", " ")


def print_stdout(message: str) -> None:
    """Print a message on stdout, wrapped for a terminal."""
    if sys.stdout.isatty():
        message = wrap_words(message, shutil.get_terminal_size().columns)
    typer.echo(message)


def print_stderr(message: str, color: str | None = None) -> None:
    """Print a message on stderr, wrapped for a terminal."""
    if sys.stderr.isatty():
        message = typer.style(wrap_words(message, shutil.get_terminal_size().columns), fg=color)
    # Not `typer.echo`, which writes past the stderr of a live view, onto its last line.
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their headings: a table on a terminal, tab-separated lines in a pipe.

    A terminal that is too narrow for the table shows a paragraph per row; paths stay whole, so that
    they can be copied. In a pipe, two columns explain themselves without headings.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from germline.report.text_format import escape_control_characters

    console = Console()
    rows = [[" ".join(escape_control_characters(cell).split()) for cell in row] for row in rows]
    if not console.is_terminal:
        for row in [columns, *rows] if len(columns) > 2 else rows:
            typer.echo("\t".join(row))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for place, name in enumerate(columns):
        width = max(Text(text).cell_len for text in (name, *(row[place] for row in rows)))
        narrowest = min(width, NARROWEST_PROSE) if name in PROSE else width
        style = "" if place else "bold"
        table.add_column(
            name, style, no_wrap=name not in PROSE, min_width=narrowest, overflow="fold"
        )
    for row in rows:
        table.add_row(*map(Text, row))
    unbounded = console.options.update(width=MOST_COLUMNS)
    if console.measure(table, options=unbounded).minimum <= console.width:
        console.print(table)
        return
    for first, *others in rows:
        pairs = [pair for pair in zip(columns[1:], others, strict=True) if pair[1]]
        cells = [text if name in PROSE else f"{name} {text}".strip() for name, text in pairs]
        console.print(first, style="bold", soft_wrap=True, markup=False, highlight=False)
        rest = wrap_words(f"  {', '.join(cells)}", console.width)
        console.print(rest, soft_wrap=True, markup=False, highlight=False)


def print_json(document: object) -> None:
    """Print a document; numbers that are not finite become null, which JSON has no word for."""
    from pydantic_core import to_jsonable_python

    plain = to_jsonable_python(document, inf_nan_mode="null")
    text = json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False)
    # A hostile text that `check` quotes may hold a lone surrogate, which UTF-8 has not.
    typer.echo(text.encode("utf-8", "backslashreplace").decode("utf-8"))


def difference_values(difference: "PairedDifference | None") -> dict[str, object]:
    """Return a paired difference to the first row as values for JSON."""
    fields = {
        "difference_to_first": "mean",
        "difference_error": "standard_error",
        "difference_interval_95": "interval",
        "difference_n": "n",
        "difference_higher": "higher",
        "difference_lower": "lower",
        "difference_p": "sign_test",
    }
    return {key: getattr(difference, field, None) for key, field in fields.items()}


def gain_values(gain: "PairedDifference") -> dict[str, object]:
    """Return the difference of the last score of a run and its first one as values for JSON."""
    values = difference_values(gain)
    mean = {"mean": values.pop("difference_to_first")}
    return mean | {key.removeprefix("difference_"): value for key, value in values.items()}


def score_values(score: "HeldOutScore", *, bootstrap: bool = False) -> dict[str, object]:
    """Return a score over examples with its interval, as values for JSON.

    `bootstrap` is an argument of `confidence_interval`.
    """

    def values(one: "HeldOutScore") -> dict[str, object]:
        from germline.evaluation import confidence_interval

        return {
            "mean": one.mean,
            "standard_error": one.standard_error,
            "interval_95": list(confidence_interval(one, bootstrap=bootstrap)),
            "n": one.n,
        }

    kept = {name: {"metric": one.metric, **values(one)} for name, one in score.retained.items()}
    return {
        "updates": score.generation,
        "metric": score.metric,
        **values(score),
        "reward": score.reward,
        "scorers": {one.metric: values(one) for one in score.scorers},
        **({"at_k": {one.metric: values(one) for one in score.at_k}} if score.at_k else {}),
        **({"retained": kept} if kept else {}),
    }
