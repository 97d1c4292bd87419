"""The command `germline export`: write the newest weights of a run."""

from pathlib import Path
from typing import Annotated

import typer

from germline.cli.arguments import Form, Run, form_of
from germline.cli.json_output import AsJson, print_json

EXPORT_EXAMPLES = (
    "germline export runs/sums --out sums-model",
    "germline export runs/sums --best --out sums-best",
    "germline export runs/adapter --out sums-adapter",
    "germline export runs/adapter --out merged-model --merged",
)


def export(
    path: Run,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write.")],
    *,
    merged: Form = None,
    best: Annotated[
        bool,
        typer.Option("--best", help="The generation with the best held-out score, not the newest."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the newest weights of a run as a folder, or with --best those that scored best.

    Any other generation: germline replay RUN --generation 40 --out DIR.

    The folder has a Hugging Face model, which plain transformers loads; or, if the run trained one,
    a PEFT adapter, which plain peft loads. Both generate the same tokens.
    """
    from germline import run

    run.export(path, out, form_of(merged=merged), "best" if best else None)
    if as_json:
        print_json({"run": path, "out": out, "files": sorted(one.name for one in out.iterdir())})
        return
    typer.echo(f"written to {out}")
