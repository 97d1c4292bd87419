"""The verbs for many runs that answer one question: `germline study intrinsic-dimension`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli.arguments import ConfigFile, Overrides, examples_epilog

if TYPE_CHECKING:
    from germline.studies.intrinsic_dimension import DimensionRun, IntrinsicDimension

INTRINSIC_DIMENSION_EXAMPLES = (
    "germline study intrinsic-dimension configs/arithmetic.yaml",
    "germline study intrinsic-dimension demo generations=20 -d 4 -d 64 --seeds 3",
)
DIMENSIONS = (2, 4, 8, 16, 32, 64, 128, 256)

study = typer.Typer(
    help="Answer a question about a config with many runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@study.callback()
def _several() -> None:
    """Keep the group a group while it has one study."""


@study.command("intrinsic-dimension", epilog=examples_epilog(INTRINSIC_DIMENSION_EXAMPLES))
def intrinsic_dimension(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    dimensions: Annotated[
        list[int] | None,
        typer.Option(
            "--dimension",
            "-d",
            min=1,
            help=f"A dimension to try, once for each; default: {', '.join(map(str, DIMENSIONS))}.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="How many run seeds, counted from that of the config.")
    ] = 1,
    share: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of the improvement to keep.")
    ] = 0.9,
    cma_up_to: Annotated[
        int,
        typer.Option(min=0, help="Search up to this dimension with cma, not as the config does."),
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the runs go; default: runs/intrinsic-dimension-TASK. Runs that are there "
            "are not run again.",
        ),
    ] = None,
) -> None:
    """Find the smallest random subspace that keeps most of a config's improvement.

    Trains the config as it is, and then in space=subspace at growing dimensions. Every run is an
    ordinary run directory; type the same command again after Ctrl-C.
    """
    from germline.config import load_config

    settings = load_config(config, overrides or [])
    folder = out or Path("runs") / f"intrinsic-dimension-{settings.task.title}"
    from germline.studies import intrinsic_dimension as study_of

    tried = sorted(set(dimensions or DIMENSIONS))
    drawn = range(settings.seed, settings.seed + seeds)
    found = []
    for one in study_of.run_dimensions(settings, tried, drawn, folder, cma_up_to):
        found.append(one)
        typer.echo(_line(one))
    finding = study_of.find_intrinsic_dimension(settings, found, share)
    _show(finding)
    figure = folder / "intrinsic-dimension.png"
    study_of.draw_share_kept(finding, f"{settings.task.title}, {settings.model}", figure)
    typer.echo(f"\ndrawn in {figure}")


def _line(one: "DimensionRun") -> str:
    name = "as it is" if one.dimension is None else f"dimension {one.dimension}"
    scores = f"{one.start.metric} {one.start.mean:.3g} -> {one.end.mean:.3g}"
    return f"... {name}, seed {one.seed}: {scores} ± {one.end.standard_error:.2g}"


def _show(found: "IntrinsicDimension") -> None:
    from germline.cli import tables

    rows = [("as it is", f"{found.end(None):.3g}", "100 %")]
    rows += [
        (str(one), f"{found.end(one):.3g}", f"{100 * found.kept(one):.0f} %")
        for one in found.dimensions
    ]
    typer.echo("")
    tables.print_table(("dimension", "held-out score", "improvement kept"), rows)
    enough = (
        f"none of these keeps {found.share:.0%} of the improvement: try more dimensions (-d)"
        if found.smallest is None
        else f"{found.smallest} dimensions keep {found.share:.0%} of the improvement"
    )
    typer.secho(f"\n{enough}", bold=True)
