"""The commands of several trainings: `germline probe`, `sweep` and `compare`."""

import math
import shlex
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from germline.cli.arguments import ConfigFile, Overrides, read_section, split_words
from germline.cli.output import INTERRUPTED, AsJson, print_json, print_stderr, print_table

if TYPE_CHECKING:
    from germline.studies.probe import ProbeAdvice
    from germline.studies.study_file import Cell, Study
    from germline.studies.sweep_results import SweepTrial

GOES_ON = "Interrupted: the same command goes on."

PROBE_EXAMPLES = (
    "germline probe configs/conciseness.yaml",
    "germline probe configs/arithmetic.yaml generations=200 --out probes/sums",
)


def probe(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Output folder; default: a new folder in probes/."),
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="Time limit, in minutes.")] = 3.0,
    as_json: AsJson = False,
) -> None:
    """Find a sigma and a learning rate for a config.

    Evaluates a few members at growing sigmas, from that of sigma=auto on, and measures where their
    texts become degenerate, where members differ, and where examples agree on the update; then
    measures one update. Writes a file of settings that `germline train` takes after the config, and
    prints the command. With zo_grpo and cma, these are a sigma alone. Only training examples are
    used. Ctrl-C ends the measurements: the advice follows from those that were made, which are kept
    in probe.json.
    """
    from germline.config import load_config

    settings = load_config(config, overrides or [])
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    folder = out or Path("probes") / f"{settings.task.title}-{stamp}"
    from germline.record.atomic_files import explain_write_errors, write_json
    from germline.record.run_paths import check_unused

    check_unused(folder)
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)

    from germline.studies.probe import probe as run_probe
    from germline.studies.probe import write_advice

    def watch(now: str) -> None:
        if not as_json:
            typer.echo(f"... {now}")

    keep = partial(write_json, folder / "probe.json")
    advice = run_probe(settings, minutes=minutes, watch=watch, keep=keep)
    command = ["germline", "probe", str(config), *(overrides or [])]
    file = write_advice(advice, folder, shlex.join(command))
    after = ["germline", "train", str(config), *(overrides or []), str(file)]
    if as_json:
        print_json(advice.values() | {"settings": file, "next": shlex.join(after)})
        return
    _show(advice)
    typer.echo(f"\nfiles: {folder}\nnext:\n  {shlex.join(after)}")


def _show(advice: "ProbeAdvice") -> None:
    from germline.report.text_format import number

    rows = [
        (
            f"{row.sigma:g}",
            f"{row.divergence:.2g}",
            f"{row.garbage:.0%}",
            f"{row.informative:.0%}",
            "" if row.agreement is None else f"{row.agreement:.2f}",
            number(row.reward),
            "the center" if row is advice.center else advice.verdict(row),
        )
        for row in (advice.center, *advice.sigma_probes)
    ]
    typer.echo("")
    measured = ("sigma", "KL", "degenerate", "examples differ", "agreement", "reward", "")
    print_table(measured, rows)
    for note in advice.notes:
        typer.echo(f"\nNote: {note}.")
    typer.secho("\nrecommended:", bold=True)
    for name, value in advice.settings.items():
        shown = value if isinstance(value, str) else f"{value:g}"
        typer.secho(f"  strategy.{name}={shown}", bold=True)


SWEEP_EXAMPLES = (
    "germline sweep arithmetic --over space.yaml --budget rollouts=400000",
    "germline sweep arithmetic budget.rollouts=5120 --over space.yaml --budget minutes=60 --jobs 2",
    "germline sweep arithmetic --over space.yaml sweep.sampler=grid sweep.seeds=4",
)


def sweep(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    over: Annotated[
        Path, typer.Option(metavar="FILE", help="The space: settings with their ranges, in YAML.")
    ],
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help="Limit of all trials together: trials, or a setting of budget, such as "
            "rollouts=40000; repeatable. Minutes are those of whole trainings, added up.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder; default: runs/CONFIG-sweep.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trials at the same time.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Search settings of a config: find the best values within a budget of all trials.

    Each trial is a folder of run directories. A trial is compared with others after a ninth and a
    third of its rollouts and goes on if it is among the best third; one whose answers break is
    stopped. The best trials get more run seeds, and the best three are trained again with new run
    seeds and scored on unseen rows. A grid maps the space instead: every trial is trained to its
    end with all run seeds. The same command continues a sweep, also from several processes at once.
    After Ctrl-C, and where the sweep is killed, runs finish their generation.

    Settings of the search are sweep.sampler (tpe, random, grid, cmaes or gp), sweep.objectives
    (score,peak_memory,tokens), sweep.seeds, sweep.test_seeds, sweep.random and sweep.storage.
    """
    from germline.config.config_files import read_value
    from germline.studies.sweep import Sweep, SweepOptions
    from germline.studies.sweep_space import SweepSpace

    words = overrides or []
    of_sweep = [word for word in words if word.startswith("sweep.")]
    parts = (limit.partition("=") for limit in budget or [])
    limits = {name: read_value(number or "''") for name, _, number in parts}
    options = read_section("sweep", SweepOptions, of_sweep, "sweep.", budget=limits)
    space = SweepSpace(over)

    from germline.cli.run_loop import stop_on_interrupt
    from germline.studies.sweep_report import SweepReport, write_report
    from germline.studies.sweep_results import SweepResults
    from germline.studies.sweep_runner import SweepRunner

    folder = out or Path("runs") / f"{config.stem}-sweep"
    others = [word for word in words if word not in of_sweep]
    plan = Sweep(str(config), others, space, folder, options)
    runner = SweepRunner(plan, jobs, lambda *ended: None if as_json else typer.echo(_line(*ended)))
    try:
        with stop_on_interrupt(runner.stop):
            runner.search()
    finally:  # of a sweep without a usable trial the report says most
        results = SweepResults(folder)
        page = write_report(results)
    if as_json:
        print_json(results.as_json() | {"report": page})
    else:
        best = SweepReport(results).best_trials()
        typer.echo("")
        print_table(best.columns, best.rows)
        typer.echo("\n".join([*results.summary(), f"report: {page}"]))
    if runner.is_stopping:
        print_stderr(GOES_ON)
        raise typer.Exit(INTERRUPTED)
    if results.best is None:
        raise typer.Exit(1)


def _line(trial: "SweepTrial", test: str) -> str:
    from germline.report.text_format import number
    from germline.studies.sweep_space import overrides_of

    of, state, score = "trial", str(trial.state), trial.mean
    if test:
        of, state, score = "test of trial", test, trial.tested.mean
    shown = "" if math.isnan(score) else f", score {number(trial.sign * score)}"
    reason = f" ({trial.reason})" if trial.reason else ""
    settings = " ".join(overrides_of(trial.settings))
    return f"{of} {trial.number} ({trial.sampler}) {settings}: {state}{shown}{reason}"


COMPARE_EXAMPLES = (
    "germline compare nano_es_vs_rl",
    "germline compare nano_es_vs_rl seeds=0..1 budget.rollouts=2048 --out runs/small",
    "germline compare study.yaml --jobs 0 --table cost",
)


def compare(  # noqa: PLR0913 - the options of the command
    context: typer.Context,
    study: Annotated[
        Path,
        typer.Argument(metavar="STUDY", help="The file of a study, or the name of a shipped one."),
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
    from germline.cli.evaluate import EVALUATION_SETTINGS
    from germline.config import load_config
    from germline.config.loader import read_task
    from germline.record.atomic_files import write_atomically
    from germline.studies import study_report
    from germline.studies.study_file import Study
    from germline.studies.study_results import StudyResults

    opened = Study(study, overrides or [], out, only or [])
    commands: Any = context.find_root().command
    for options in opened.file.eval:  # a wrong one is refused before hours of training
        given = commands.commands["eval"].make_context("eval", ["run", *options.split()]).params
        settings = split_words("compare: eval", given["others"], EVALUATION_SETTINGS)[1]
        if given["task"]:
            load_config({"task": read_task(given["task"])})
        for config in () if given["task"] else opened.configs.values():
            load_config(config, settings)
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
    if status == INTERRUPTED:
        print_stderr(GOES_ON)
    if status:
        raise typer.Exit(status)


def _run(study: "Study", jobs: int, *, quiet: bool) -> tuple[list[str], int]:
    """Run what is missing and show each run as it ends; return the failures and an exit status."""
    from germline.cli.run_loop import stop_on_interrupt
    from germline.record import RunDirectory
    from germline.report import text_format
    from germline.studies.run_processes import StudyRunner

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
