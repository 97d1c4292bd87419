"""Show the progress of a training: a line per generation, on a terminal above a progress bar."""

import math
import os
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from germline.config import Config
from germline.record import RunDirectory
from germline.record.atomic_files import Row
from germline.record.metrics_rows import generation_row, mean_signal
from germline.report import text_format
from germline.report.findings import WINDOW
from germline.report.text_format import number
from germline.types import GenerationRecord, HeldOutScore, SigmaTrial

STOPPING = "Finishing what is running, then stopping. Ctrl-C again stops at once."

OF_WEIGHTS = {"mean_abs": " x mean |W|", "std": " x std W", "rms": " x rms W"}
"""Units that are a fraction of the weights of each tensor, as they are shown after sigma."""


class ProgressView:
    """Prints a line for each generation and each trial of sigma; if quiet, the reply to Ctrl-C.

    On a terminal a progress bar with the signals of the latest generations stays below the lines
    and below warnings. The time that is left follows from the mean of the finished generations; the
    first one counts for nothing: it has the start of the run and the calibration of sigma.
    """

    def __init__(self, run: RunDirectory, console: Console, *, quiet: bool = False) -> None:
        self._run, self._quiet = run, quiet
        self._rows = run.generations()[-WINDOW:]
        rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self.bar = Progress(
            *(MofNCompleteColumn(), BarColumn(10), TimeElapsedColumn()),
            TextColumn("{task.description}", table_column=rest),
            console=console,
            expand=True,
            disable=quiet or not console.is_terminal,
            speed_estimate_period=math.inf,
        )
        total, done = run.config.generations, run.journal.last_generation() + 1
        self._task = self.bar.add_task(_signal(self._rows), total=total, completed=done)
        self._is_first = not done

    def generation(self, record: GenerationRecord) -> None:
        """Print the line of a generation, the first one after the score before training."""
        self._rows = [*self._rows, generation_row(record)][-WINDOW:]
        done = record.generation + 1
        self.bar.update(self._task, completed=done, description=_signal(self._rows))
        if self._is_first:  # No generation contains the score before training.
            for row in self._run.held_out()[:1]:
                self._print(f"{'  '.join(_held_out(row.score))} before training")
        self._is_first = False
        self._print(generation_line(record, self.left, self._run.config))

    def trial(self, trial: SigmaTrial) -> None:
        """Print the begin of a trial, as one can take minutes, and its result."""
        self._print(_trial_line(trial))

    def stopping(self) -> None:
        """Confirm Ctrl-C; called from a signal handler."""
        # A signal may arrive inside a print; the system call is safe there, a second print is not.
        os.write(2, f"\n{STOPPING}\n".encode())

    @property
    def left(self) -> str:
        """The time that is left, in words; empty while it is not known."""
        seconds = self.bar.tasks[0].time_remaining
        return "" if seconds is None else f"{text_format.duration(float(seconds))} left"

    def _print(self, line: str) -> None:
        if not self._quiet:
            self.bar.console.print(line, markup=False, highlight=False, soft_wrap=True)


def generation_line(record: GenerationRecord, left: str, config: Config) -> str:
    """Format a generation as one line."""
    width, row = len(str(record.generations - 1)), generation_row(record)
    number_of = f"generation {record.generation:>{width}} ({record.generation + 1}/"
    parts = [_fitness(row, config), _search(row, config), _cost_weight(row)]
    parts.append(f"{number(row['tokens_per_s'])} tokens/s")
    scores = _held_out(record.held_out) if record.held_out else []
    line = [f"{number_of}{record.generations})", *filter(None, parts), *scores, left]
    return "  ".join(line).rstrip()


def _trial_line(trial: SigmaTrial) -> str:
    """Describe a trial of sigma that begins, or its result."""
    if trial.kl is None:
        return f"calibrating sigma: measuring the KL divergence of sigma {trial.sigma:g} ..."
    source = ", kept from an earlier run" if trial.is_kept else ""
    return f"  sigma {trial.sigma:g}: estimated KL {number(trial.kl)} nats per token{source}"


def _fitness(row: Row, config: Config) -> str:
    """Describe the fitness of members; samples of one model have no spread to show."""
    fitness = {name: number(value) for name, value in row["fitness"].items()}
    parts = [f"fitness {fitness['mean']}"]
    if config.method.members_generate:
        between = f"{fitness['p20']} to {fitness['p80']}"
        parts.append(f"20-80 % of members {between}  best {fitness['max']}")
    return "  ".join(parts)


def _search(row: Row, config: Config) -> str:
    """Describe sigma with its unit, the length of the step, and the learning rate."""
    parts = []
    if config.method.perturbs:
        parts.append(f"sigma {number(row['sigma'])}{OF_WEIGHTS.get(config.search.unit, '')}")
    if (step := row.get("step_in_sigmas")) is not None:
        parts.append("no signal" if row["zero_signal"] else f"step {number(step)} sigmas")
    if row["learning_rate"] is not None:
        parts.append(f"learning rate {number(row['learning_rate'])}")
    return "  ".join(parts)


def _cost_weight(row: Row) -> str:
    """Describe lambda and the mean cost of the center; empty where the reward has no lambda."""
    if "lambda" not in row:
        return ""
    cost = row["center_cost"]
    of_center = "" if cost is None else f"  cost of the center {number(cost)}"
    return f"lambda {number(row['lambda'])}{of_center}"


def _held_out(score: HeldOutScore) -> list[str]:
    """Format a held-out score, those of the same completions by scorers, and of `retained`."""
    scores = [f"held-out {one.metric} {text_format.score(one)}" for one in (score, *score.scorers)]
    kept = [text_format.retained_change(name, [one]) for name, one in score.retained.items()]
    return [*scores, *(f"retained {one}" for one in kept)]


def _signal(rows: Sequence[Row]) -> str:
    """Summarize the signals of the latest generations."""
    tied = mean_signal(rows, "groups_without_signal")
    differ = mean_signal(rows, "informative_examples") if tied is None else 1 - tied
    parts = [
        ("rewards differ on {} of examples", differ, text_format.percent),
        ("agreement of halves {}", mean_signal(rows, "agreement"), number),
        ("walk {}", mean_signal(rows[-1:], "walk"), number),
    ]
    return "  ".join(text.format(write(value)) for text, value, write in parts if value is not None)
