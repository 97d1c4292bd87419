"""Drive a training from the terminal: show it, let it be stopped, sum it up."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from germline.cli import train_summary
from germline.cli.interrupt import INTERRUPTED, stop_on_interrupt
from germline.cli.live_view import LineView, LiveView, ProgressView, SilentView
from germline.record import RunDirectory

if TYPE_CHECKING:
    from germline.run import Training


def run_with_view(begin: "Callable[[], Training]", *, quiet: bool) -> None:
    """Run a training to its end or to Ctrl-C, and say what came of it.

    Raises:
        typer.Exit: the training was stopped before its last generation.
    """
    console = Console()
    with nullcontext() if quiet or not console.is_terminal else console.status("loading ..."):
        training = begin()
    view = _view(console, training.directory, quiet=quiet)
    last = training.directory.journal.last_generation()

    def stop() -> None:
        training.stop()
        view.stopping()

    training.on_trial = view.trial
    view.start()
    try:
        with stop_on_interrupt(stop):
            for record in training:
                last = record.generation
                view.generation(record)
    except KeyboardInterrupt:
        view.close()  # before a word is printed, which the next frame would paint over
        train_summary.print_stopped(console, training.directory)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        view.close()
    train_summary.print_result(console, training.directory, quiet=quiet)
    if training.directory.stopped_early:
        train_summary.print_stopped_early(console, training.directory)
    elif last + 1 < training.config.generations:
        train_summary.print_stopped(console, training.directory)
        raise typer.Exit(INTERRUPTED)
    if not quiet:
        train_summary.print_next_commands(console, training.directory)


def _view(console: Console, run: RunDirectory, *, quiet: bool) -> ProgressView:
    if quiet:
        return SilentView()
    return LiveView(console, run) if console.is_terminal else LineView(console, run)
