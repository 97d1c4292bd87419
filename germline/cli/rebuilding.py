"""The verbs that rebuild weights from a run: `germline replay` and `germline export`."""

from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run directory.")]

REPLAY_EXAMPLES = ("germline replay runs/sums --generation 25 --out sums-25",)
EXPORT_EXAMPLES = ("germline export runs/sums --out sums-model",)


def replay(
    path: Run,
    generation: Annotated[
        int,
        typer.Option(
            "--generation", "-g", min=-1, help="The last update to include; -1 is the base model."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the weights here, as a Hugging Face folder."),
    ] = None,
) -> None:
    """Rebuild the weights of any generation.

    They come from base model and journal alone; their digest is verified.
    """
    from germline import run

    digest = run.replay(path, generation, out)
    typer.echo(f"generation {generation} rebuilt, digest verified: {digest}")
    if out is not None:
        typer.echo(f"written to {out}")


def export(
    path: Run,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write.")],
) -> None:
    """Write the model as a Hugging Face folder.

    Plain transformers loads it; it answers with the same tokens.
    """
    from germline import run

    run.export(path, out)
    typer.echo(f"written to {out}")
