"""The command `germline replay`: rebuild the weights of any generation."""

from pathlib import Path
from typing import Annotated

import typer

from germline.cli.arguments import Form, Generation, Run, form_of, generation_of
from germline.cli.json_output import AsJson, print_json

REPLAY_EXAMPLES = (
    "germline replay runs/sums",
    "germline replay runs/sums --generation 25 --out sums-replayed",
)


def replay(
    path: Run,
    generation: Generation = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write the weights here, as `germline export` does; default: only verify them.",
        ),
    ] = None,
    *,
    merged: Form = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the weights of any generation.

    They are computed from the base model and the journal alone, and their digest is verified.
    """
    from germline import run
    from germline.record import RunDirectory
    from germline.run.export_weights import generation_to_replay

    chosen = generation_of("replay", generation)
    number = generation_to_replay(RunDirectory.open(path), chosen)
    digest = run.replay(path, number, out, form_of(merged=merged))
    if as_json:
        print_json({"run": path, "generation": number, "digest": digest, "out": out})
        return
    typer.echo(f"generation {number} rebuilt, digest verified: {digest}")
    if out is not None:
        typer.echo(f"written to {out}")
