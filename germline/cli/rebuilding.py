"""The verbs that rebuild weights from a run: `germline replay` and `germline export`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from germline.cli import completing

Run = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="The run directory.", autocompletion=completing.runs),
]

Form = Annotated[
    bool | None,
    typer.Option(
        "--merged/--adapter",
        help="A Hugging Face model folder, or a PEFT adapter. Default: the adapter where the run "
        "trained one (space.kind=lora, or singular with space.start).",
    ),
]

REPLAY_EXAMPLES = ("germline replay runs/sums --generation 25 --out sums-25",)
EXPORT_EXAMPLES = (
    "germline export runs/sums --out sums-model",
    "germline export runs/adapter --out sums-adapter",
    "germline export runs/adapter --out sums-model --merged",
)


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
        typer.Option(metavar="DIR", help="Write the weights here, as `germline export` does."),
    ] = None,
    *,
    merged: Form = None,
) -> None:
    """Rebuild the weights of any generation.

    They come from base model and journal alone; their digest is verified.
    """
    from germline import run

    digest = run.replay(path, generation, out, _form(merged=merged))
    typer.echo(f"generation {generation} rebuilt, digest verified: {digest}")
    if out is not None:
        typer.echo(f"written to {out}")


def export(
    path: Run,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write.")],
    *,
    merged: Form = None,
) -> None:
    """Write the newest weights as a folder.

    A Hugging Face model, which plain transformers loads; or, of a run that trained one, a PEFT
    adapter, which plain peft loads. Either answers with the same tokens.
    """
    from germline import run

    run.export(path, out, _form(merged=merged))
    typer.echo(f"written to {out}")


def _form(*, merged: bool | None) -> Literal["adapter", "merged"] | None:
    if merged is None:
        return None
    return "merged" if merged else "adapter"
