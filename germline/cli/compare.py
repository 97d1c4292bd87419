"""The command `germline compare`: methods on tasks with several run seeds, at the same budget."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from germline.cli.output import INTERRUPTED, AsJson, print_json, print_stderr, print_table

if TYPE_CHECKING:
    from germline.studies.study_file import Cell, Study

COMPARE_EXAMPLES = (
    "germline compare nano_es_vs_rl",
    "germline compare nano_es_vs_rl seeds=0..1 budget.rollouts=2048 --out runs/small",
    "germline compare study.yaml --jobs 2",
    "germline compare study.yaml --jobs 0 --table cost",
)


def compare(
    study: Annotated[
        Path,
        typer.Argument(
            metavar="STUDY",
            help="The file of a study, or the name of a shipped one.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings of the study, such as seeds=0..1."),
    ] = None,
    *,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the runs; default: runs/STUDY.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A task or a method, to leave out others; repeatable."),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=0, help="Runs at the same time; 0: report those that have ended.")
    ] = 1,
    table: Annotated[
        Literal["qiu", "cost", "coverage", "forgetting"] | None,
        typer.Option(help="Print one table, as papers have it; TABLE.tex has it in LaTeX."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare methods on tasks at the same budget: run what is missing, then report.

    A study names tasks (each with a config), methods (each with settings), run seeds and a budget.
    Each run is a run directory in the folder of the study. Runs that were interrupted are continued
    and runs that have ended are read, so the same command continues an interrupted study. After
    Ctrl-C, runs finish their generation.

    The report is in the folder: compare.html, compare.md, figures and compare.json.
    """
    from germline.record.atomic_files import write_atomically
    from germline.studies import study_report
    from germline.studies.study_file import Study
    from germline.studies.study_results import StudyResults

    opened = Study(study, overrides or [], out, only or [])
    is_quiet = as_json or table is not None
    failures, status = _run(opened, jobs, quiet=is_quiet) if jobs else ([], 0)
    results = StudyResults(opened)
    page = study_report.write_report(results, failures)
    if table is not None:
        made = study_report.PAPER_TABLES[table](results)
        write_atomically(page.with_name(f"{table}.tex"), made.latex().encode())
        typer.echo(made.markdown())
    elif as_json:
        print_json(study_report.as_json(results, failures))
    else:
        for title, made in study_report.tables(results).items():
            typer.secho(f"\n{title}", bold=True)
            print_table(made.columns, made.rows)
        typer.echo("\n".join(["", *study_report.summary(results), *results.notes]))
        typer.echo(f"report: {page}")
    if failures and not as_json:
        print_stderr("\n".join(failures), "red")
    if status:
        raise typer.Exit(status)


def _run(study: "Study", jobs: int, *, quiet: bool) -> tuple[list[str], int]:
    """Run what is missing and show each run as it ends; return the failures and an exit status."""
    from germline.cli.run_loop import stop_on_interrupt
    from germline.record import RunDirectory
    from germline.report import text_format
    from germline.studies.study_runs import StudyRunner

    ended: list[str] = []
    failures: list[str] = []

    def show(cell: "Cell", failure: str) -> None:
        ended.append(cell.title)
        if failure:
            failures.append(f"{cell.title}: {failure}")
        if not quiet:
            scores = [] if failure else RunDirectory.open(cell.path).held_out()
            what = failure or text_format.score(scores[-1].score)
            typer.echo(f"{len(ended)}/{len(study.cells)} {cell.title}: {what}")

    runner = StudyRunner(study, jobs, show)
    with stop_on_interrupt(runner.stop):
        runner.run_cells()
    return failures, INTERRUPTED if runner.is_stopping else int(bool(failures))
