"""The command `germline sweep`: search settings of a config, with a budget for all trials."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli.arguments import ConfigFile, Overrides, read_section
from germline.cli.output import (
    INTERRUPTED,
    AsJson,
    print_json,
    print_stderr,
    print_table,
)
from germline.errors import GermlineError

if TYPE_CHECKING:
    from germline.studies.sweep_results import SweepTrial

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
        Path,
        typer.Option(metavar="FILE", help="The space: settings with their ranges, in YAML."),
    ],
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help="Limit of all trials together: trials, or a setting of budget, such as "
            "rollouts=40000; repeatable.",
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
    After Ctrl-C, runs finish their generation; those of a sweep that is killed train on up to their
    rung, and the same command waits for them.

    Settings of the search are sweep.sampler (tpe, random, grid, cmaes or gp), sweep.objectives
    (score,peak_memory,tokens), sweep.seeds, sweep.test_seeds, sweep.random and sweep.storage.
    """
    from germline.config.config_files import read_value
    from germline.studies.sweep_options import SweepOptions
    from germline.studies.sweep_space import SweepSpace

    words = overrides or []
    of_sweep = [word for word in words if word.startswith("sweep.")]
    limits = {}
    for limit in budget or []:
        name, _, number = limit.partition("=")
        limits[name] = read_value(number)
        if limits[name] is None:
            raise GermlineError(f"--budget {limit}: give it a number, such as rollouts=40000")
    options = read_section("sweep", SweepOptions, of_sweep, "sweep.", budget=limits)
    space = SweepSpace.read(over)

    from germline.cli.run_loop import stop_on_interrupt
    from germline.studies.sweep import Sweep  # takes seconds, so mistakes are refused before
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
        print_stderr("Interrupted: the same command goes on.")
        raise typer.Exit(INTERRUPTED)


def _line(trial: "SweepTrial", ended: str) -> str:
    from germline.report.text_format import number
    from germline.studies.sweep_space import overrides_of

    of, state, score = "trial", str(trial.state), trial.mean
    if ended == "test":
        of, state, score = "test of trial", trial.test, trial.again
    shown = "" if math.isnan(score) else f", score {number(trial.sign * score)}"
    reason = f" ({trial.reason})" if trial.reason else ""
    settings = " ".join(overrides_of(dict(trial.settings)))
    return f"{of} {trial.number} ({trial.sampler}) {settings}: {state}{shown}{reason}"
