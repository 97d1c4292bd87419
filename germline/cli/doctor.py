"""The command `germline doctor`: check the installation, or estimate what a config needs."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli import completion
from germline.cli.arguments import Overrides
from germline.cli.json_output import AsJson, print_json
from germline.cli.word_wrap import fits_stdout, print_stdout

if TYPE_CHECKING:
    from germline.cli.installation_checks import InstallationCheck

DOCTOR_EXAMPLES = (
    "germline doctor",
    "germline doctor --json > doctor.json      # for a bug report",
    "germline doctor --model Qwen/Qwen3-4B --config countdown",
    "germline doctor --config recipes/qwen3-4b-80gb --hardware 80gb",
    "germline doctor --config countdown --hardware t4 engine.dtype=float16",
)
MARGIN = 8
"""Columns before the name of a check, in which its state stands."""

MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "broken": ("BROKEN", "red")}


def doctor(
    overrides: Overrides = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Estimate what this model needs: a folder, a Hugging Face id, or nano.",
            autocompletion=completion.complete_folders,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG",
            help="Estimate what this config needs: a file, or the name of a shipped config.",
            autocompletion=completion.complete_configs,
        ),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Estimate for another machine (laptop-8gb, t4, 24gb, 80gb), from its data sheet; "
            "default: this one.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the installation: what is installed, what works, and what can be added.

    Draws noise, loads the nano model, applies an update, starts a grader, and compares digests with
    the expected ones, which are the same on every machine. Exits with status 1 if a check fails.

    With --model, --config or settings it prints instead how much memory and time a run would need
    here, from the model's config.json and a short measurement of this machine; no weights are
    loaded. Exits with status 1 if the run does not fit.
    """
    if overrides or model is not None or config is not None or hardware is not None:
        from germline.cli.estimate import print_estimate

        if not print_estimate(config, overrides or [], model, hardware, as_json=as_json):
            raise typer.Exit(1)
        return
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
