"""The verb that examines the installation: `germline doctor`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli import completion

if TYPE_CHECKING:
    from germline.cli.installation_checks import InstallationCheck

DOCTOR_EXAMPLES = (
    "germline doctor",
    "germline doctor --json > doctor.json      # for a bug report",
    "germline doctor --model Qwen/Qwen3-4B --config countdown",
    "germline doctor --config recipes/qwen3-4b-80gb --hardware 80gb",
)
MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "broken": ("BROKEN", "red")}


def doctor(
    *,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Estimate what this model needs instead: a folder, a Hugging Face id, or nano.",
            autocompletion=completion.complete_folders,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG",
            help="Estimate what this config needs: a file, or the name of a shipped one.",
            autocompletion=completion.complete_configs,
        ),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --model or --config: a machine that is not here (laptop-8gb, t4, 24gb, "
            "80gb), by its data sheet.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a bug report.")] = False,
) -> None:
    """Say what is installed, what works here, and what to install for the rest.

    Draws noise, loads the nano model, applies an update, starts a grader, and compares digests with
    those of every other machine. Ends with status 1 if something is broken.

    With --model or --config it prints instead how much memory and time a run would need here, from
    the model's config.json and a short measurement of this machine; no weight is loaded. Ends with
    status 1 if that does not fit.
    """
    if model is not None or config is not None or hardware is not None:
        from germline.cli.estimate import print_estimate

        if not print_estimate(config, model, hardware, as_json=as_json):
            raise typer.Exit(1)
        return
    from germline.cli.installation_checks import check_installation

    findings = check_installation()
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


def _show(title: str, findings: "list[InstallationCheck]") -> None:
    width = max(len(one.name) for one in findings)
    typer.secho(title, bold=True)
    for one in findings:
        mark, color = MARKS[one.state]
        shown = typer.style(f"{mark:>6}", fg=color)
        typer.echo(f"{shown}  {one.name:<{width}}  {one.value}")
        if one.remedy:
            typer.echo(f"{'':>6}  {'':<{width}}  -> {one.remedy}")
    typer.echo()
