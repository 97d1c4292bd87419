"""The command `germline export`: write the weights of a run."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from germline.cli.arguments import Form, Generation, Run, form_of, generation_of
from germline.cli.json_output import AsJson, print_json

EXPORT_EXAMPLES = (
    "germline export runs/sums --out sums-model",
    "germline export runs/sums --best --out sums-best",
    "germline export runs/sums --generation 25 --out sums-25",
    "germline export runs/adapter --out sums-adapter",
    "germline export runs/adapter --out merged-model --merged",
)


def export(
    path: Run,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write.")],
    generation: Generation = None,
    *,
    merged: Form = None,
    best: Annotated[bool, typer.Option("--best", help="Short for --generation best.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the weights of a run as a folder: the newest, or those of another generation.

    The folder has a Hugging Face model, which plain transformers loads; or, if the run trained one,
    a PEFT adapter, which plain peft loads. Both generate the same tokens.
    """
    from germline import run
    from germline.record import RunDirectory
    from germline.run.export_weights import generation_to_export
    from germline.types import GermlineError

    if best and generation not in (None, "best"):
        raise GermlineError(
            f"export: --best and --generation={generation} name two generations: leave one out"
        )
    chosen = generation_of("export", "best" if best else generation)
    run.export(path, out, form_of(merged=merged), chosen)
    directory = RunDirectory.open(path)
    number = generation_to_export(directory, chosen)
    if as_json:
        files = sorted(one.name for one in out.iterdir())
        print_json({"run": path, "out": out, "generation": number, "files": files})
        return
    typer.echo(f"written to {out}")
    if directory.config.method.trains_center:
        which = f"after generation {number}" if number >= 0 else "before training"
        score = ", which have the best held-out score" if chosen == "best" else ""
        typer.echo(f"weights {which} of {path}{score}")
    typer.echo(f'next:\n  germline generate {shlex.quote(str(out))} "your prompt"')
