"""The command `germline export`: write the newest weights of a run."""

from pathlib import Path
from typing import Annotated

import typer

from germline.cli.arguments import Form, Run, form_of

EXPORT_EXAMPLES = (
    "germline export runs/sums --out sums-model",
    "germline export runs/adapter --out sums-adapter",
    "germline export runs/adapter --out sums-model --merged",
)


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

    run.export(path, out, form_of(merged=merged))
    typer.echo(f"written to {out}")
