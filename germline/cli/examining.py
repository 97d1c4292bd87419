"""The verb that examines the installation: `germline doctor`."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from germline.cli.checkup import Finding

DOCTOR_EXAMPLES = (
    "germline doctor",
    "germline doctor --json > doctor.json      # for a bug report",
)
MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "broken": ("BROKEN", "red")}


def doctor(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a bug report.")] = False,
) -> None:
    """Say what is installed, what works here, and what to install for the rest.

    Draws noise, loads the nano model, applies an update, starts a grader, and compares digests with
    those of every other machine. Ends with status 1 if something is broken.
    """
    from germline.cli.checkup import examine

    findings = examine()
    broken = [one for found in findings.values() for one in found if one.state == "broken"]
    if as_json:
        plain = {title: [asdict(one) for one in found] for title, found in findings.items()}
        typer.echo(json.dumps({"healthy": not broken, **plain}, indent=2, ensure_ascii=False))
    else:
        for title, found in findings.items():
            if found:
                _show(title, found)
        typer.echo(f"{len(broken)} broken" if broken else "All well.")
    if broken:
        raise typer.Exit(1)


def _show(title: str, findings: "list[Finding]") -> None:
    width = max(len(one.name) for one in findings)
    typer.secho(title, bold=True)
    for one in findings:
        mark, colour = MARKS[one.state]
        shown = typer.style(f"{mark:>6}", fg=colour)
        typer.echo(f"{shown}  {one.name:<{width}}  {one.found}")
        if one.remedy:
            typer.echo(f"{'':>6}  {'':<{width}}  -> {one.remedy}")
    typer.echo()
