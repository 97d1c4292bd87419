"""Print sentences, tables and JSON, for a terminal or a pipe."""

import json
import sys
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


def print_stderr(message: str, color: str | None = None) -> None:
    """Print a message on stderr, on a terminal in a color."""
    if sys.stderr.isatty():
        message = typer.style(message, fg=color)
    # Not `typer.echo`, which writes past the stderr of a live view, onto its last line.
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their headings: a table on a terminal, tab-separated lines in a pipe.

    In a pipe, two columns explain themselves without headings.
    """
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    from germline.report.text_format import escape_control_characters

    console = Console()
    rows = [[" ".join(escape_control_characters(cell).split()) for cell in row] for row in rows]
    if not console.is_terminal:
        for row in [columns, *rows] if len(columns) > 2 else rows:
            typer.echo("\t".join(row))
        return
    headings = (Column(name, overflow="fold") for name in columns)
    table = Table(*headings, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def print_json(document: object) -> None:
    """Print a document; numbers that are not finite become null, which JSON has no word for."""
    from pydantic_core import to_jsonable_python

    plain = to_jsonable_python(document, inf_nan_mode="null")
    text = json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False)
    # A hostile text that `check` quotes may hold a lone surrogate, which UTF-8 has not.
    typer.echo(text.encode("utf-8", "backslashreplace").decode("utf-8"))


def difference_values(difference: "PairedDifference | None") -> dict[str, object]:
    """Return a paired difference as values for JSON."""
    fields = {
        "mean": "mean",
        "error": "standard_error",
        "interval_95": "interval",
        "n": "n",
        "higher": "higher",
        "lower": "lower",
        "p": "sign_test",
    }
    return {key: getattr(difference, field, None) for key, field in fields.items()}


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
