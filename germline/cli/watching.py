"""Drive a training from the terminal: show it, let it be stopped, sum it up."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from germline.cli import summary
from germline.cli.stopping import INTERRUPTED, interruptible
from germline.cli.views import Lines, LiveView, Silent, View
from germline.record import RunDirectory

if TYPE_CHECKING:
    from germline.run import Training


def watch(begin: "Callable[[], Training]", *, quiet: bool) -> None:
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
        with interruptible(stop):
            for record in training:
                last = record.generation
                view.generation(record)
    except KeyboardInterrupt:
        view.close()  # before a word is printed, which the next frame would paint over
        summary.stopped(console, training.directory)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        view.close()
    summary.result(console, training.directory, quiet=quiet)
    if last + 1 < training.config.generations:
        summary.stopped(console, training.directory)
        raise typer.Exit(INTERRUPTED)
    if not quiet:
        summary.next_commands(console, training.directory)


def _view(console: Console, run: RunDirectory, *, quiet: bool) -> View:
    if quiet:
        return Silent()
    return LiveView(console, run) if console.is_terminal else Lines(console, run)
