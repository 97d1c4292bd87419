"""The command `germline analyze`: what training did to the weights."""

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import typer

from germline.cli.arguments import Generations, runs_of_sources, split_words
from germline.cli.output import AsJson, print_json, print_table

ANALYZE_EXAMPLES = (
    "germline analyze deltas runs/sums",
    "germline analyze cosine runs/sums runs/more -g 10 -g 20",
    "germline analyze trajectory runs/sums",
    "germline analyze deltas my-model --start nano --out my-analysis",
    "germline analyze modes runs/es runs/grpo",
    "germline analyze robustness runs/sums scales=0.03,0.1 trials=3 limit=64",
)


def analyze(
    what: Annotated[
        Literal["deltas", "cosine", "trajectory", "modes", "robustness", "directions", "coverage"],
        typer.Argument(
            help="deltas: size and form of the change of each tensor. cosine: how much the changes "
            "of runs, or up to several generations, agree. trajectory: the path of the center. "
            "modes: scores from the start to a model, between two, or in the plane of three. "
            "robustness: scores with noise on the weights. directions: slope and cost of a further "
            "step. coverage: what several tries solve."
        ),
    ],
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|MODEL|KEY=VALUE",
            help="Runs, models and adapters; and settings, such as limit=64.",
        ),
    ],
    *,
    start: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The model that the model folders were trained from."),
    ] = None,
    generation: Generations = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the results; default: a new one in analysis/."),
    ] = None,
    emit: Annotated[
        Literal["mergekit"] | None,
        typer.Option(help="Also write merge.yaml, for mergekit, and export the runs it names."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Analyze what training did to the weights.

    Prints a table, and writes it with a figure and all numbers into a folder. Interrupted, the same
    command goes on.
    """
    from rich.console import Console

    from germline.analysis import analyze as run_analysis

    words, given = split_words("analyze", sources, ("",))
    runs = runs_of_sources(words)
    question = repr((what, runs, start, generation, sorted(given)))
    folder = out or Path("analysis") / f"{what}-{hashlib.sha256(question.encode()).hexdigest()[:8]}"
    try:
        with Console(stderr=True).status("loading ...") as status:  # shown on a terminal alone
            result = run_analysis(
                what,
                runs,
                start=start,
                generation=generation or None,
                out=folder,
                emit=emit,
                settings=dict(word.split("=", 1) for word in given),
                watch=status.update,
            )
    except KeyboardInterrupt:
        kept = "What is measured is kept: the same command goes on from there."
        raise KeyboardInterrupt(kept) from None
    if as_json:
        print_json({"out": str(folder), **result.as_json()})
        return
    print_table(result.table[0], result.table[1:])
    typer.echo("\n".join(["", *result.notes, f"files: {folder}"]))
