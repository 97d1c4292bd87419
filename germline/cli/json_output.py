"""The option `--json`: one JSON document on stdout, and errors as JSON with their exit status."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from germline.evaluation.score_difference import PairedDifference
    from germline.types import HeldOutScore

FLAG = "--json"

AsJson = Annotated[bool, typer.Option(FLAG, help="Print one JSON document instead of text.")]


def print_json(document: object) -> None:
    """Print a document; numbers that are not finite become null, which JSON has no word for."""
    text = json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False)
    # A hostile text that `check task` quotes may hold a lone surrogate, which UTF-8 has not.
    typer.echo(text.encode("utf-8", "backslashreplace").decode("utf-8"))


def print_error(kind: str, message: str, status: int) -> None:
    """Print an error as the document of a command that was given `--json`."""
    print_json({"error": {"type": kind, "message": message, "exit_status": status}})


def difference_values(difference: "PairedDifference | None") -> dict[str, object]:
    """Return a paired difference to the first row as values for JSON."""
    return {
        "difference_to_first": difference.mean if difference else None,
        "difference_error": difference.standard_error if difference else None,
        "difference_interval_95": list(difference.interval) if difference else None,
        "difference_n": difference.n if difference else None,
        "difference_higher": difference.higher if difference else None,
        "difference_lower": difference.lower if difference else None,
    }


def score_values(score: "HeldOutScore") -> dict[str, object]:
    """Return a score over examples with its interval, as values for JSON."""
    from germline.evaluation import confidence_interval

    return {
        "updates": score.generation,
        "metric": score.metric,
        "mean": score.mean,
        "standard_error": score.standard_error,
        "interval_95": list(confidence_interval(score)),
        "n": score.n,
        "reward": score.reward,
        "scorers": {
            one.metric: {
                "mean": one.mean,
                "standard_error": one.standard_error,
                "interval_95": list(confidence_interval(one)),
                "n": one.n,
            }
            for one in score.scorers
        },
    }


def _plain(value: object) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
