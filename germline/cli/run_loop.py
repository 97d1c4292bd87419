"""Run a training from the terminal: show its progress, handle Ctrl-C, print the result."""

import math
import os
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from germline.cli.output import INTERRUPTED, print_json, print_table, score_values
from germline.config import Config
from germline.errors import count_of
from germline.record import HeldOutRow, RunDirectory
from germline.record.atomic_files import Row
from germline.record.early_stopping import best_score
from germline.record.metrics_rows import generation_row, mean_signal, paired_samples
from germline.report import text_format
from germline.report.findings import WINDOW, findings
from germline.report.run_facts import next_commands, resume_command
from germline.report.text_format import number
from germline.types import GenerationRecord, GermlineError, HeldOutScore, SigmaTrial

if TYPE_CHECKING:
    from germline.run import Training
    from germline.studies.run_seeds import SeedStudy


SHOWN_SAMPLES = 5


def run_with_view(begin: "Callable[[], Training]", *, quiet: bool, as_json: bool) -> None:
    """Begin a training and run it to its end or until Ctrl-C; print the result and what is next.

    Raises:
        typer.Exit: the training was stopped before its last generation.
    """
    quiet = quiet or as_json
    # A status takes what is written to a terminal, warnings too; in a pipe it shows nothing.
    try:
        with nullcontext() if quiet else Console().status("loading ..."):
            training = begin()
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Nothing was trained: give the command again.") from None
    _run(training, quiet=quiet, as_json=as_json)
    if not quiet:
        typer.echo("\n  ".join(["next:", *next_commands(training.directory)]))


def _run(training: "Training", *, quiet: bool, as_json: bool = False) -> None:
    run = training.directory
    if not quiet:
        _print_position(run)
    is_interrupted = False
    try:
        _follow(training, quiet=quiet)
    except KeyboardInterrupt:
        is_interrupted = True
    except GermlineError:
        if not as_json and run.journal.last_generation() >= 0:
            print_state(run)
        raise
    if as_json:
        print_json(run_as_json(run))
    else:
        if not is_interrupted:
            print_result(run, quiet=quiet)
        print_state(run)
    if is_interrupted or not run.has_ended:
        raise typer.Exit(INTERRUPTED)


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first SIGINT or SIGTERM, raise KeyboardInterrupt at the next SIGINT.

    Cluster schedulers send SIGTERM before they kill a process.
    """

    def handle(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_seeds_with_view(study: "SeedStudy", *, quiet: bool, as_json: bool) -> None:
    """Train every run seed of a study in turn, and print the statistics over the seeds.

    Raises:
        typer.Exit: the study was stopped before its last seed.
    """
    for training in study.trainings():
        if as_json:
            _follow(training, quiet=True)
            if not training.directory.has_ended:
                print_json(run_as_json(training.directory))
                raise typer.Exit(INTERRUPTED)
            continue
        if not quiet:
            typer.echo(f"seed {training.config.seed}: {training.directory.path}")
        try:
            _run(training, quiet=quiet)
        except typer.Exit:
            folder = shlex.quote(str(study.out))
            typer.echo(f"To train all seeds to their end: germline resume {folder}")
            raise
    summary = study.summary()
    report = study.write_results(summary)
    if as_json:
        runs = [run_as_json(RunDirectory.open(study.path(seed))) for seed in study.seeds]
        print_json({"out": study.out, "report": report, "runs": runs, **summary.as_json()})
        return
    rows = [
        (str(run.config.seed), *map(text_format.score, scores))
        for run, scores in zip(summary.counted, summary.ends, strict=True)
    ]
    rows.append(("mean", *map(text_format.over_seeds, summary.statistics.values())))
    typer.echo("")
    print_table(("seed", "before", "best", "after"), rows)
    typer.echo(f"{text_format.MEANS_OVER_SEEDS}\nreport over all seeds: {report}")


def run_as_json(run: RunDirectory) -> dict[str, Any]:
    """Return the result of a training as values for JSON."""
    entries = run.journal.read()
    scores = [row.score for row in run.held_out()]
    ends = {
        "start": scores[0] if scores else None,
        "best": best_score(scores),
        "end": scores[-1] if scores else None,
    }
    state = "finished" if run.has_ended else "stopped"
    return {
        "run": run.path,
        "state": "stopped early" if run.stopped_by else state,
        "stopped_by": run.stopped_by,
        "generations": len(entries),
        "planned_generations": run.config.generations,
        "digest": entries[-1].digest if entries else run.base_digest,
        "held_out": {name: score_values(one) if one else None for name, one in ends.items()},
        "findings": [finding.as_json() for finding in findings(run)],
        "report": run.report if run.report.exists() else None,
        "figure": run.figure if run.figure.exists() else None,
    }


def print_result(run: RunDirectory, *, quiet: bool) -> None:
    """Print held-out answers and scores before and after training, findings, paths of files."""
    rows = run.held_out()
    if not quiet and len(rows) > 1 and rows[0].samples and rows[-1].samples:
        console = Console()
        console.print(_completions_table(rows[0], rows[-1], console.width))
    done = run.journal.last_generation() + 1
    lines = text_format.score_lines([row.score for row in rows], run.config, done)
    if voters := run.ensemble():
        alone = text_format.number(voters[0]["score"])
        lines.append(
            f"the score is that of a vote of {len(voters)} members; the member with the best "
            f"training fitness scores {alone}"
        )
    options = text_format.center_options(run.generations())
    lines += [f"prompt options of the center: {one}" for one in options]
    lines += [f"{finding.level}: {finding.sentence}" for finding in findings(run)]
    for line in lines:
        typer.echo(line)
    typer.echo(f"run directory: {run.path}")
    for name, path in (("figure", run.figure), ("report", run.report)):
        if path.exists():
            typer.echo(f"{name + ':':15}{path}")


def print_state(run: RunDirectory) -> None:
    """Say where a training stopped, and the command that trains on; nothing at its planned end."""
    done, total = run.journal.last_generation() + 1, run.config.generations
    if ending := run.ending:
        typer.echo(
            f"Stopped early after {done} of {count_of(total, 'generations')}, as {ending.reason} "
            f"({ending.setting}). To train on: {resume_command(run)}"
        )
    elif not run.has_ended:
        where = f"after generation {done - 1} ({done} of {total} done)"
        where = where if done else "before the first generation"
        path = shlex.quote(str(run.path))
        typer.echo(f"Stopped {where}. Resume with: germline resume {path}")


def _completions_table(before: HeldOutRow, after: HeldOutRow, width: int) -> Table:
    """Tabulate the answers of the base and the trained model to the same held-out prompts."""
    table = Table(title="held-out prompts, before and after training", title_justify="left")
    column = max(12, (width - 13) // 4)
    for name in ("prompt", "gold answer", "before", "after"):
        table.add_column(name, overflow="fold")
    pairs = [
        (sample, later)
        for sample, later in paired_samples(before.samples, after.samples)
        if later is not None
    ][:SHOWN_SAMPLES]
    prompts = text_format.without_common_start([sample.prompt for sample, _ in pairs])
    for (sample, later), prompt in zip(pairs, prompts, strict=True):
        texts = (prompt, sample.answer, sample.completion, later.completion)
        table.add_row(*(Text(text_format.one_line_excerpt(text, 3 * column)) for text in texts))
    return table


def _follow(training: "Training", *, quiet: bool) -> None:
    view = ProgressView(training.directory, Console(), quiet=quiet)

    def stop() -> None:
        training.stop()
        view.stopping()

    training.on_trial = view.trial
    with view.bar, stop_on_interrupt(stop):
        for record in training:
            view.generation(record)


def _print_position(run: RunDirectory) -> None:
    done = run.journal.last_generation() + 1
    total = count_of(run.config.generations, "generations")
    if done and run.has_ended:
        typer.echo(f"This run is finished ({done} of {total}): nothing is trained.")
    elif done:
        typer.echo(f"Continuing after {done} of {total}.")


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
    """Format a generation as one line; samples of one model have no spread to show."""
    width, row = len(str(record.generations - 1)), generation_row(record)
    fitness = {name: number(value) for name, value in row["fitness"].items()}
    number_of = f"generation {record.generation:>{width}} ({record.generation + 1}/"
    parts = [f"{number_of}{record.generations})", f"fitness {fitness['mean']}"]
    if config.method.members_generate:
        between = f"{fitness['p20']} to {fitness['p80']}"
        parts += [f"20-80 % of members {between}", f"best {fitness['max']}"]
    if config.method.perturbs:
        parts.append(f"sigma {number(row['sigma'])}{OF_WEIGHTS.get(config.search.unit, '')}")
    if (step := row.get("step_in_sigmas")) is not None:
        parts.append("no signal" if row["zero_signal"] else f"step {number(step)} sigmas")
    if row["learning_rate"] is not None:
        parts.append(f"learning rate {number(row['learning_rate'])}")
    if "lambda" in row:  # the weight of a cost in the reward
        parts.append(f"lambda {number(row['lambda'])}")
    if row.get("center_cost") is not None:
        parts.append(f"cost of the center {number(row['center_cost'])}")
    parts.append(f"{number(row['tokens_per_s'])} tokens/s")
    scores = _held_out(record.held_out) if record.held_out else []
    return "  ".join([*parts, *scores, left]).rstrip()


def _trial_line(trial: SigmaTrial) -> str:
    if trial.kl is None:
        return f"calibrating sigma: measuring the KL divergence of sigma {trial.sigma:g} ..."
    source = ", kept from an earlier run" if trial.is_kept else ""
    return f"  sigma {trial.sigma:g}: estimated KL {number(trial.kl)} nats per token{source}"


def _held_out(score: HeldOutScore) -> list[str]:
    scores = [f"held-out {one.metric} {text_format.score(one)}" for one in (score, *score.scorers)]
    kept = [text_format.retained_change(name, [one]) for name, one in score.retained.items()]
    return [*scores, *(f"retained {one}" for one in kept)]


def _signal(rows: Sequence[Row]) -> str:
    tied = mean_signal(rows, "groups_without_signal")
    differ = mean_signal(rows, "informative_examples") if tied is None else 1 - tied
    parts = [
        ("rewards differ on {} of examples", differ, text_format.percent),
        ("agreement of halves {}", mean_signal(rows, "agreement"), number),
        ("walk {}", mean_signal(rows[-1:], "walk"), number),
    ]
    return "  ".join(text.format(write(value)) for text, value, write in parts if value is not None)
