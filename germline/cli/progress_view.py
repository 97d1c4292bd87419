"""Show the progress of a training as plain lines, for files and pipes, or not at all."""

import os
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from germline.cli import text_format
from germline.config import Config
from germline.record import RunDirectory
from germline.record.metrics_rows import fitness_summary, mean_sigma, step_in_sigmas
from germline.signal_types import SigmaTrial
from germline.types import GenerationRecord, HeldOutScore

STOPPING = "Finishing what is running, then stopping. Ctrl-C again stops at once."

OF_WEIGHTS = {"mean_abs": " x mean |W|", "std": " x std W", "rms": " x rms W"}
"""Units that are a fraction of the weights of each tensor, as they are shown after sigma."""


NARROW = 60
"""Columns of a terminal from which on the bar has room beside the numbers."""


class SilentView:
    """Shows no progress, except a confirmation of Ctrl-C; the base of the other views."""

    def start(self) -> None:
        """Start to show progress."""

    def generation(self, record: GenerationRecord) -> None:
        """Show a finished generation."""

    def trial(self, trial: SigmaTrial) -> None:
        """Show a sigma whose trial begins, or the result of a trial."""

    def stopping(self) -> None:
        """Confirm Ctrl-C; called from a signal handler."""
        # A signal may arrive inside a print; the system call is safe there, a second print is not.
        os.write(2, f"\n{STOPPING}\n".encode())

    def close(self) -> None:
        """Stop showing progress."""


class Clock:
    """A progress bar, and the time that is left by the mean of the finished generations.

    The first one counts for nothing: it has the start of the run and the calibration of sigma.
    """

    def __init__(self, console: Console, total: int, done: int) -> None:
        name = TextColumn("[bold]{task.description}")
        bar = [BarColumn(min(30, console.width // 4))] if console.width >= NARROW else []
        columns = name, MofNCompleteColumn(), *bar, TimeElapsedColumn()
        self.bar = Progress(
            *columns, console=console, auto_refresh=False, speed_estimate_period=float("inf")
        )
        self._task = self.bar.add_task("generations", total=total, completed=done)

    def tick(self, done: int) -> None:
        """Record that so many generations are finished."""
        self.bar.update(self._task, completed=done)

    @property
    def left(self) -> str:
        """The time that is left, in words; empty while it is not known."""
        seconds = self.bar.tasks[0].time_remaining
        return "" if seconds is None else f"{text_format.duration(float(seconds))} left"


class LineView(SilentView):
    """One plain line per generation, for files and pipes."""

    def __init__(self, console: Console, run: RunDirectory) -> None:
        self._console = console
        self._run = run
        done = run.journal.last_generation() + 1
        self._clock = Clock(console, run.config.generations, done)
        self._is_first = not done

    def generation(self, record: GenerationRecord) -> None:
        """Print the line of a generation, the first one after the score before training."""
        self._clock.tick(record.generation + 1)
        if self._is_first:  # No generation contains the score before training.
            for row in self._run.held_out()[:1]:
                self._print(f"{'  '.join(_held_out(row.score))} before training")
        self._is_first = False
        self._print(generation_line(record, self._clock.left, self._run.config))

    def trial(self, trial: SigmaTrial) -> None:
        """Print the begin of a trial, as one can take minutes, and its result."""
        self._print(trial_line(trial))

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)


def generation_line(record: GenerationRecord, left: str, config: Config) -> str:
    """Format a generation as one line."""
    fitness = {
        name: text_format.number(value) for name, value in fitness_summary(record.fitness).items()
    }
    width = len(str(record.generations - 1))
    parts = [
        f"generation {record.generation:>{width}} ({record.generation + 1}/{record.generations})",
        f"fitness {fitness['mean']}",
        f"20-80 % of {config.method.graded}s {fitness['p20']} to {fitness['p80']}",
        f"best {fitness['max']}",
        f"sigma {text_format.number(mean_sigma(record))}{unit_of_sigma(config)}",
    ]
    if (step := step_in_sigmas(record.update)) is not None:
        parts.append(f"step {text_format.number(step)} sigmas")
    parts.append(cost_weight(record.strategy_metrics))
    if record.held_out is not None:
        parts += _held_out(record.held_out)
    parts += [speed(record), left]
    return "  ".join(filter(None, parts))


def trial_line(trial: SigmaTrial) -> str:
    """Describe a trial of sigma that begins, or its result."""
    if trial.kl is None:
        return f"calibrating sigma: measuring the KL divergence of sigma {trial.sigma:g} ..."
    return f"  sigma {trial.sigma:g}: KL {text_format.number(trial.kl)} nats per token"


def cost_weight(metrics: Mapping[str, Any]) -> str:
    """Describe lambda and the mean cost of the center; empty where the reward has no lambda."""
    if "lambda" not in metrics:
        return ""
    cost = metrics["center_cost"]
    of_center = "" if cost is None else f"  cost of the center {text_format.number(cost)}"
    return f"lambda {text_format.number(metrics['lambda'])}{of_center}"


def unit_of_sigma(config: Config) -> str:
    """Return the unit of sigma and the walk after a space; empty: that of the weights."""
    return OF_WEIGHTS.get(config.search.unit, "")


def speed(record: GenerationRecord) -> str:
    """Describe the tokens per second of a generation."""
    seconds = record.evaluation.decode_seconds
    rate = record.evaluation.tokens / seconds if seconds > 0 else None
    return f"{text_format.number(rate)} tokens/s"


def _held_out(score: HeldOutScore) -> list[str]:
    """Format a held-out score, and those of the same completions by `held_out.scorers`."""
    return [f"held-out {one.metric} {text_format.score(one)}" for one in (score, *score.scorers)]
