"""Run a training from the terminal: show its progress, handle Ctrl-C, print the result."""

import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from germline.cli.output import INTERRUPTED, print_json, print_table, score_values
from germline.cli.progress_view import ProgressView
from germline.errors import count_of
from germline.record import HeldOutRow, RunDirectory
from germline.record.early_stopping import best_score
from germline.record.metrics_rows import paired_samples
from germline.report import text_format
from germline.report.findings import findings
from germline.report.run_facts import next_commands, resume_command
from germline.types import GermlineError

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
    rows, counted = run.held_out(), text_format.counted_by(run.config)
    if not quiet and len(rows) > 1 and rows[0].samples and rows[-1].samples:
        console = Console()
        console.print(_completions_table(rows[0], rows[-1], console.width))
    done = run.journal.last_generation() + 1
    lines = text_format.score_lines([row.score for row in rows], counted, done)
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
    """Run a training to its end or until Ctrl-C, and show every generation."""
    view = ProgressView(training.directory, Console(), quiet=quiet)

    def stop() -> None:
        training.stop()
        view.stopping()

    training.on_trial = view.trial
    with view.bar, stop_on_interrupt(stop):
        for record in training:
            view.generation(record)


def _print_position(run: RunDirectory) -> None:
    """Say from where a run continues, or that it has nothing left to do."""
    done = run.journal.last_generation() + 1
    total = count_of(run.config.generations, "generations")
    if done and run.has_ended:
        typer.echo(f"This run is finished ({done} of {total}): nothing is trained.")
    elif done:
        typer.echo(f"Continuing after {done} of {total}.")
