"""The command `germline export`: write or verify the weights of a generation of a run."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from germline.cli.arguments import Generation, Run
from germline.cli.output import AsJson, print_json

EXPORT_EXAMPLES = (
    "germline export runs/sums --out sums-model",
    "germline export runs/sums --generation best --out sums-best",
    "germline export runs/sums --generation 25 --out sums-25",
    "germline export runs/adapter --out merged-model --merged",
    "germline export runs/sums --generation 25 --verify",
)


def export(
    path: Run,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder to write.")] = None,
    generation: Generation = None,
    *,
    merged: Annotated[
        bool | None,
        typer.Option(
            "--merged/--adapter",
            help="Write a Hugging Face model folder, or a PEFT adapter. Default: the adapter if "
            "the run trained one (space.kind=lora, or singular with space.init_adapter).",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Rebuild the weights from the base model and the journal alone, without "
            "snapshots (except of gradients), and verify their digest; without --out, nothing is "
            "written.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the weights of a run as a folder: the newest, or those of another generation.

    The folder has a Hugging Face model, which plain transformers loads; or, if the run trained one,
    a PEFT adapter, which plain peft loads. Both generate the same tokens.
    """
    from germline import run
    from germline.record import RunDirectory
    from germline.run.weights import requested_generation
    from germline.types import GermlineError

    if out is None and not verify:
        raise GermlineError("export: name the folder to write, --out DIR, or only --verify")
    form: Any = {None: None, True: "merged", False: "adapter"}[merged]
    directory = RunDirectory.open(path)
    digest = None
    if verify:
        number = requested_generation(directory, generation)
        digest = run.replay(path, number)
    if out is not None:
        number = run.export(path, out, form, generation)
    if as_json:
        files = sorted(one.name for one in out.iterdir()) if out else []
        values = {"run": path, "out": out, "generation": number, "files": files, "digest": digest}
        print_json(values)
        return
    if digest is not None:
        typer.echo(f"generation {number} rebuilt, digest verified: {digest}")
    if out is None:
        return
    typer.echo(f"written to {out}")
    if directory.config.method.trains_center:
        which = f"after generation {number}" if number >= 0 else "before training"
        score = ", which have the best held-out score" if generation == "best" else ""
        typer.echo(f"weights {which} of {path}{score}")
    typer.echo(f'next:\n  germline generate {shlex.quote(str(out))} "your prompt"')
