"""The verb that tells what runs did: `germline report`."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from germline.cli import completion

REPORT_EXAMPLES = (
    "germline report runs/sums --open",
    "germline report runs/sums runs/sums-wider --out compared.html",
)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="One or more run directories, or folders of several run seeds.",
            autocompletion=completion.complete_runs,
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page to write; default: report.html in the run, or here for several.",
        ),
    ] = None,
    browse: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
) -> None:
    """Write an HTML page about a run, or compare several.

    Curves, answers before and after, time, memory, failures, settings and the commands that repeat
    it. The page needs nothing but itself. A run that goes on or was stopped says how far it came.
    """
    from germline.cli.train_summary import print_score_decline
    from germline.record import RunDirectory
    from germline.report.html_page import write_report

    runs = [one for run in runs for one in _runs_of(run)]
    path = write_report(runs, out)
    for run in runs:
        for line in print_score_decline(RunDirectory.open(run)):
            typer.echo(line if len(runs) == 1 else f"{run}: {line}")
    typer.echo(f"written to {path}")
    if browse and not webbrowser.open(path.resolve().as_uri()):
        typer.echo("no browser could be started: open that file in one", err=True)


def _runs_of(path: Path) -> list[Path]:
    """Return the runs in a folder of several run seeds, or the run directory itself."""
    if (path / "run.json").exists() or not (path / "seeds.json").exists():
        return [path]
    return sorted(
        (file.parent for file in path.glob("seed-*/run.json")),
        key=lambda run: int(run.name.removeprefix("seed-")),
    )
