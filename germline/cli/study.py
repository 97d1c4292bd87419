"""The command `germline study`: answer a question about a config with many runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli.arguments import ConfigFile, Force, Overrides, examples_epilog
from germline.cli.json_output import AsJson, print_json, score_values

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
    """Make typer keep the group, although it has a single command."""


@study.command("intrinsic-dimension", epilog=examples_epilog(INTRINSIC_DIMENSION_EXAMPLES))
def intrinsic_dimension(  # noqa: PLR0913 - the options of a command
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
        int, typer.Option(min=1, help="Number of run seeds, beginning with that of the config.")
    ] = 1,
    share: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of the improvement to keep.")
    ] = 0.9,
    cma_up_to: Annotated[
        int,
        typer.Option(min=0, help="Use strategy=cma up to this dimension."),
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the run directories; default: runs/intrinsic-dimension-TASK. Finished "
            "runs in it are not repeated.",
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Find the smallest random subspace that keeps most of a config's improvement.

    Trains the unchanged config, and then in space=subspace at growing dimensions. Every run has an
    ordinary run directory; after Ctrl-C, repeat the same command to continue.
    """
    from germline.config import load_config

    settings = load_config(config, overrides or [])
    folder = out or Path("runs") / f"intrinsic-dimension-{settings.task.title}"
    from germline.studies import intrinsic_dimension as study_of

    tried = sorted(set(dimensions or DIMENSIONS))
    run_seeds = range(settings.seed, settings.seed + seeds)
    runs = []
    for run in study_of.run_dimensions(settings, tried, run_seeds, folder, cma_up_to):
        runs.append(run)
        if not as_json:
            typer.echo(_line(run))
    result = study_of.find_intrinsic_dimension(settings, runs, share)
    figure = folder / "intrinsic-dimension.png"
    study_of.draw_share_kept(result, f"{settings.task.title}, {settings.model}", figure)
    if as_json:
        print_json(_values(result, runs) | {"figure": figure})
        return
    _show(result)
    typer.echo(f"\nfigure: {figure}")


def _values(result: "IntrinsicDimension", runs: "list[DimensionRun]") -> dict[str, object]:
    return {
        "runs": [
            {
                "dimension": run.dimension,
                "seed": run.seed,
                "start": score_values(run.start),
                "end": score_values(run.end),
            }
            for run in runs
        ],
        "dimensions": [
            {"dimension": one, "score": result.end(one), "kept": result.kept(one)}
            for one in result.dimensions
        ],
        "unchanged": result.end(None),
        "share": result.share,
        "smallest": result.smallest,
    }


def _line(run: "DimensionRun") -> str:
    from germline.cli.text_format import kind_of_error, number, score

    name = "unchanged config" if run.dimension is None else f"dimension {run.dimension}"
    scores = f"{run.start.metric} {number(run.start.mean)} -> {score(run.end)}"
    return f"... {name}, seed {run.seed}: {scores} ({kind_of_error(run.end)})"


def _show(result: "IntrinsicDimension") -> None:
    from germline.cli import tables

    rows = [("unchanged config", f"{result.end(None):.3g}", "100 %")]
    rows += [
        (str(dimension), f"{result.end(dimension):.3g}", f"{100 * result.kept(dimension):.0f} %")
        for dimension in result.dimensions
    ]
    typer.echo("")
    tables.print_table(("dimension", "held-out score", "improvement kept"), rows)
    conclusion = (
        f"none of these keeps {result.share:.0%} of the improvement: try more dimensions (-d)"
        if result.smallest is None
        else f"{result.smallest} dimensions keep {result.share:.0%} of the improvement"
    )
    typer.secho(f"\n{conclusion}", bold=True)
