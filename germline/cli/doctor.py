"""The command `germline doctor`: check the installation."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from germline.cli.json_output import AsJson, print_json
from germline.cli.word_wrap import fits_stdout, print_stdout

if TYPE_CHECKING:
    from germline.cli.installation_checks import InstallationCheck

DOCTOR_EXAMPLES = (
    "germline doctor",
    "germline doctor --json > doctor.json      # for a bug report",
)
MARGIN = 8
"""Columns before the name of a check, in which its state stands."""

MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "broken": ("BROKEN", "red")}


def doctor(*, as_json: AsJson = False) -> None:
    """Check the installation: what is installed, what works, and what can be added.

    Draws noise, loads the nano model, applies an update, starts a grader, and compares digests with
    the expected ones, which are the same on every machine. Exits with status 1 if a check fails.

    Whether a run fits this machine is what `germline train CONFIG --dry-run` says.
    """
    from germline.cli.installation_checks import check_installation

    sections = check_installation()
    broken = [row for rows in sections.values() for row in rows if row.state == "broken"]
    if as_json:
        plain = {title: [asdict(row) for row in rows] for title, rows in sections.items()}
        print_json({"healthy": not broken, **plain})
    else:
        for title, rows in sections.items():
            if rows:
                _show(title, rows)
        typer.echo(f"{len(broken)} checks failed" if broken else "All checks passed.")
    if broken:
        raise typer.Exit(1)


def _show(title: str, rows: "list[InstallationCheck]") -> None:
    width = max(len(row.name) for row in rows)
    typer.secho(title, bold=True)
    for row in rows:
        mark, color = MARKS[row.state]
        shown = typer.style(f"{mark:>6}", fg=color)
        lines = [row.value, *([f"-> {row.remedy}"] if row.remedy else [])]
        if fits_stdout(MARGIN + width + 2 + max(map(len, lines))):
            typer.echo(f"{shown}  {row.name:<{width}}  {lines[0]}")
            lines = [f"{'':<{width}}  {line}" for line in lines[1:]]
        else:
            typer.echo(f"{shown}  {row.name}")
        for line in lines:
            print_stdout(f"{'':>{MARGIN}}{line}")
    typer.echo()
