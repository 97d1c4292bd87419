"""Run a training from the terminal: show its progress, handle Ctrl-C, print the summary."""

import shlex
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from germline.cli import tables, text_format, train_summary
from germline.cli.interrupt import INTERRUPTED, stop_on_interrupt
from germline.cli.json_output import print_json
from germline.cli.live_view import LiveView
from germline.cli.progress_view import LineView, SilentView
from germline.cli.run_as_json import run_as_json, seeds_as_json
from germline.cli.word_wrap import print_stdout
from germline.record import RunDirectory
from germline.record.seed_study import folder_to_resume
from germline.types import GermlineError

if TYPE_CHECKING:
    from germline.evaluation.seed_statistics import SeedStatistics
    from germline.run import Training
    from germline.studies.run_seeds import SeedStudy


def run_with_view(
    begin: "Callable[[], Training]", *, quiet: bool, as_json: bool = False, of_several: bool = False
) -> None:
    """Run a training to its end or until Ctrl-C, and print a summary, or its values as JSON.

    One `of_several` seeds has no next commands: they would leave its seeds with different lengths.

    Raises:
        typer.Exit: the training was stopped before its last generation.
    """
    quiet = quiet or as_json
    console = Console()
    with nullcontext() if quiet or not console.is_terminal else console.status("loading ..."):
        training = begin()
    _print_position(console, training.directory, quiet=quiet)
    try:
        _follow(training, _view(console, training.directory, quiet=quiet))
    except KeyboardInterrupt:
        if as_json:
            print_json(run_as_json(training.directory))
        else:
            train_summary.print_stopped(console, training.directory)
        raise typer.Exit(INTERRUPTED) from None
    except GermlineError:
        if not as_json and training.directory.journal.last_generation() >= 0:
            train_summary.print_stopped(console, training.directory)
        raise
    if as_json:
        print_json(run_as_json(training.directory))
        if not training.directory.has_ended:
            raise typer.Exit(INTERRUPTED)
        return
    train_summary.print_result(console, training.directory, quiet=quiet)
    if training.directory.stopped_early:
        train_summary.print_stopped_early(console, training.directory)
    elif not training.directory.has_ended:
        train_summary.print_stopped(console, training.directory)
        raise typer.Exit(INTERRUPTED)
    if not quiet and not of_several:
        train_summary.print_next_commands(console, training.directory)


def _follow(training: "Training", view: SilentView) -> None:
    """Run a training to its end or until Ctrl-C, and show every generation."""

    def stop() -> None:
        training.stop()
        view.stopping()

    training.on_trial = view.trial
    view.start()
    try:
        with stop_on_interrupt(stop):
            for record in training:
                view.generation(record)
    finally:
        view.close()  # before anything is printed, because the next frame would overwrite it


def run_seeds_with_view(study: "SeedStudy", *, quiet: bool, as_json: bool = False) -> None:
    """Train every run seed of a study in turn, and print the statistics over the seeds.

    Raises:
        typer.Exit: the study was stopped before its last seed.
    """
    for training in study.trainings():
        if not (quiet or as_json):
            typer.echo(f"seed {training.config.seed}: {training.directory.path}")
        try:
            _run_one_seed(training, quiet=quiet, as_json=as_json)
        except typer.Exit:
            if not as_json:
                folder = shlex.quote(str(study.out))
                print_stdout(f"To train all seeds to their end: germline resume {folder}")
            raise
    summary = study.summary()
    report = study.write_results(summary)
    if as_json:
        print_json(seeds_as_json(study, summary, report))
        return
    rows = [
        (
            f"{result.seed}",
            *(text_format.score(score) for score in (result.start, result.best, result.end)),
        )
        for result in summary.results
    ]
    statistics = summary.statistics().values()
    rows += [
        (name, *(_over_seeds(statistic, name) for statistic in statistics))
        for name in ("mean", "95 % interval", "smallest to largest")
    ]
    typer.echo("")
    tables.print_table(("seed", "before", "best", "after"), rows)
    print_stdout(f"report over all seeds: {report}")
    if not quiet:
        print_stdout(
            "To compare it with another config, train that with the same seeds, and then: "
            f"germline report {shlex.quote(str(study.out))} OTHER_FOLDER"
        )


def _run_one_seed(training: "Training", *, quiet: bool, as_json: bool) -> None:
    """Train one seed of a study, whose own values are part of the document of the study.

    Raises:
        typer.Exit: it was stopped before its last generation.
    """
    if not as_json:
        run_with_view(lambda: training, quiet=quiet, of_several=True)
        return
    with stop_on_interrupt(training.stop):
        for _ in training:
            pass
    if not training.directory.has_ended:
        print_json(run_as_json(training.directory))
        raise typer.Exit(INTERRUPTED)


def _over_seeds(one: "SeedStatistics", name: str) -> str:
    from germline.evaluation.seed_statistics import FEWEST_SEEDS

    number = text_format.number
    if name == "mean":
        return number(one.mean)
    if name == "95 % interval":
        if not one.has_interval:
            return f"needs {FEWEST_SEEDS} seeds"
        return f"{number(one.low)} to {number(one.high)}"
    return f"{number(one.smallest)} to {number(one.largest)}"


def _print_position(console: Console, directory: RunDirectory, *, quiet: bool) -> None:
    """Say from where a run continues, or that it has nothing left to do."""
    if quiet:
        return
    done, total = directory.journal.last_generation() + 1, directory.config.generations
    if done and directory.has_ended:
        train_summary.print_sentence(
            console,
            f"This run is finished ({done} of {total} generations): nothing is trained. For more, "
            f"germline resume {shlex.quote(str(folder_to_resume(directory.path)))} "
            f"generations={2 * total}",
        )
    elif done:
        console.print(f"Continuing after {done} of {total} generations.", highlight=False)
    elif directory.ancestors:
        parent = directory.ancestors[-1]
        train_summary.print_sentence(
            console,
            f"A new run from the weights of {parent.path} after generation {parent.generation}, "
            f"with run seed {directory.config.seed}.",
        )


def _view(console: Console, run: RunDirectory, *, quiet: bool) -> SilentView:
    if quiet:
        return SilentView()
    return LiveView(console, run) if console.is_terminal else LineView(console, run)
