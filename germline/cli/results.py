"""The commands that read results: `germline report` and `analyze`."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from germline.cli.arguments import Generations, runs_of_sources, split_words
from germline.cli.output import (
    AsJson,
    difference_values,
    print_json,
    print_stderr,
    print_table,
    score_values,
)

if TYPE_CHECKING:
    from germline.report.run_facts import RunFacts


REPORT_EXAMPLES = (
    "germline report runs/sums",
    "germline report runs/sums runs/sums-wider --out compared.html",
)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="One or more run directories, or folders of several run seeds."
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page to write; default: report.html in the run directory or in the folder of "
            "run seeds, for other runs in the working directory.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write an HTML page about a run, or compare several.

    The page shows findings, curves, answers before and after training, time, failures, settings and
    commands that use the run. It is self-contained. A run that is training or was stopped can be
    reported too.
    """
    from germline.record.run_paths import runs_of
    from germline.report import text_format
    from germline.report.comparison import comparison_tables, seed_groups
    from germline.report.html_page import page_path, read_runs, write_page

    facts = read_runs([one for run in runs for one in runs_of(run)])
    path = page_path(facts, out)
    write_page(facts, path)
    groups = seed_groups(facts)
    if as_json:
        print_json(
            {
                "report": path,
                "runs": _as_json(facts),
                "seed_groups": [{"name": one.name, **one.as_json()} for one in groups],
            }
        )
    else:
        if len(facts) > 1:
            for table in comparison_tables(facts, groups).values():
                print_table(table.columns, table.rows)
            typer.echo(f"{text_format.MEANS_OVER_SEEDS}; germline eval compares runs in pairs")
            for group in groups:
                if group.left_out:
                    typer.echo(group.left_out)
        for one in facts:
            if one.damage:
                print_stderr(f"the journal is damaged: {one.damage}", "red")
            of = f"{one.path}: " if len(facts) > 1 else ""
            for finding in one.findings:
                typer.echo(f"{of}{finding.level}: {finding.sentence}")
            scores = text_format.score_lines(one.scores, one.config, one.done)
            for line in [*scores, *_behavior_lines(one)]:
                typer.echo(f"{of}{line}")
        typer.echo(f"written to {path}")


def _behavior_lines(run: "RunFacts") -> list[str]:
    from germline.report.text_format import behavior_change

    change = run.behavior and behavior_change(run.behavior)
    of = f" ({change})" if change else ""
    return [f"behavior of the held-out answers: {run.behavior.word}{of}"] if run.behavior else []


def _as_json(runs: "Sequence[RunFacts]") -> list[dict[str, object]]:
    return [
        {
            "run": run.path,
            "findings": [finding.as_json() for finding in run.findings],
            "damage": run.damage,
            "behavior": run.behavior
            and {
                "verdict": run.behavior.word,
                "start": run.scores[0].behavior,
                "now": run.scores[-1].behavior,
            },
            "score": score_values(run.scores[-1]) if run.scores else None,
            "since_start": run.gain and difference_values(run.gain),
        }
        for run in runs
    ]


ANALYZE_EXAMPLES = (
    "germline analyze deltas runs/sums",
    "germline analyze cosine runs/sums runs/more -g 10 -g 20",
    "germline analyze trajectory runs/sums",
    "germline analyze deltas my-model --start nano --out my-analysis",
    "germline analyze modes runs/es runs/grpo",
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
                generations=generation or (None,),
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
