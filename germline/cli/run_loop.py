"""Run a training from the terminal: show its progress, handle Ctrl-C, print the result."""

import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from germline.cli.output import (
    INTERRUPTED,
    print_json,
    print_stdout,
    print_table,
    score_values,
    wrap_words,
)
from germline.cli.progress_view import LineView, LiveView, SilentView
from germline.record import HeldOutRow, RunDirectory
from germline.record.best_generation import best_score
from germline.record.metrics_rows import paired_samples, scores_by_scorer
from germline.record.seed_study import folder_to_resume
from germline.report import text_format
from germline.report.findings import findings
from germline.report.run_facts import next_commands, resume_command
from germline.types import GermlineError, HeldOutScore

if TYPE_CHECKING:
    from germline.evaluation.seed_statistics import SeedStatistics
    from germline.run import Training
    from germline.studies.run_seeds import SeedStudy

SHOWN_SAMPLES = 5


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
    run = training.directory
    if not quiet:
        _print_position(console, run)
    try:
        _follow(training, _view(console, run, quiet=quiet))
    except KeyboardInterrupt:
        _print_end(console, run, as_json=as_json)
        raise typer.Exit(INTERRUPTED) from None
    except GermlineError:
        if not as_json and run.journal.last_generation() >= 0:
            print_state(console, run)
        raise
    _print_end(console, run, quiet=quiet, as_json=as_json, is_whole=True)
    if not run.has_ended:
        raise typer.Exit(INTERRUPTED)
    if not quiet and not of_several:
        lines = ["next:", *(f"  {command}" for command in next_commands(run))]
        _print_whole(console, "\n".join(lines))


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first SIGINT or SIGTERM, raise KeyboardInterrupt at the next SIGINT.

    Cluster schedulers send SIGTERM before they kill a process. Python lets only the main thread set
    signal handlers; elsewhere Ctrl-C keeps its usual meaning.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_seeds_with_view(study: "SeedStudy", *, quiet: bool, as_json: bool = False) -> None:
    """Train every run seed of a study in turn, and print the statistics over the seeds.

    Raises:
        typer.Exit: the study was stopped before its last seed.
    """
    for training in study.trainings():
        if as_json:
            _follow(training, SilentView())
            if not training.directory.has_ended:
                print_json(run_as_json(training.directory))
                raise typer.Exit(INTERRUPTED)
            continue
        if not quiet:
            typer.echo(f"seed {training.config.seed}: {training.directory.path}")
        try:
            run_with_view(partial(_same, training), quiet=quiet, of_several=True)
        except typer.Exit:
            folder = shlex.quote(str(study.out))
            print_stdout(f"To train all seeds to their end: germline resume {folder}")
            raise
    summary = study.summary()
    report = study.write_results(summary)
    if as_json:
        runs = [run_as_json(RunDirectory.open(study.path(seed))) for seed in study.seeds]
        print_json({"out": study.out, "report": report, "runs": runs, **summary.as_json()})
        return
    rows = [
        (str(one.seed), *map(text_format.score, (one.start, one.best, one.end)))
        for one in summary.results
    ]
    statistics = summary.statistics().values()
    rows.append(("mean", *(text_format.number(one.mean) for one in statistics)))
    rows.append(("95 % interval", *map(_interval, statistics)))
    rows.append(
        (
            "smallest to largest",
            *(" to ".join(map(text_format.number, (s.smallest, s.largest))) for s in statistics),
        )
    )
    typer.echo("")
    print_table(("seed", "before", "best", "after"), rows)
    print_stdout(f"report over all seeds: {report}")
    if not quiet:
        print_stdout(
            "To compare it with another config, train that with the same seeds, and then: "
            f"germline report {shlex.quote(str(study.out))} OTHER_FOLDER"
        )


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
        "state": "stopped early" if run.stopped_early else state,
        "generations": len(entries),
        "planned_generations": run.config.generations,
        "digest": entries[-1].digest if entries else run.base_digest,
        "held_out": {name: score_values(one) if one else None for name, one in ends.items()},
        "findings": [finding.as_json() for finding in findings(run)],
        "report": run.report if run.report.exists() else None,
        "figure": run.figure if run.figure.exists() else None,
    }


def print_result(console: Console, run: RunDirectory, *, quiet: bool) -> None:
    """Print held-out answers and scores before and after training, findings, paths of files."""
    scores = run.held_out()
    if not quiet and len(scores) > 1 and scores[0].samples and scores[-1].samples:
        console.print(completions_table(scores[0], scores[-1], console.width))
    for line in (
        *_scores([row.score for row in scores], run.journal.last_generation() + 1),
        *_voters(run),
        *(
            f"prompt options of the center: {one}"
            for one in text_format.center_options(run.generations())
        ),
        *(f"{finding.level}: {finding.sentence}" for finding in findings(run)),
    ):
        print_sentence(console, line)
    _print_whole(console, f"run directory: {run.path}")
    for name, path in (("figure", run.figure), ("report", run.report)):
        if path.exists():
            _print_whole(console, f"{name + ':':15}{path}")


def print_state(console: Console, run: RunDirectory) -> None:
    """Say where a training stopped, and the command that trains on; nothing at its planned end."""
    done, total = run.journal.last_generation() + 1, run.config.generations
    if early := run.stopped_early:
        patience = run.config.held_out.patience
        print_sentence(
            console,
            f"Stopped early after {done} of {total} generations: the last {patience} held-out "
            f"scores were not better than the best one, {_best(early)} "
            f"(held_out.patience={patience}). To train on: {resume_command(run)}",
        )
    elif not run.has_ended:
        where = f"after generation {done - 1} ({done} of {total} done)"
        where = where if done else "before the first generation"
        path = shlex.quote(str(run.path))
        print_sentence(console, f"Stopped {where}. Resume with: germline resume {path}")


def completions_table(before: HeldOutRow, after: HeldOutRow, width: int) -> Table:
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


def print_sentence(console: Console, line: str) -> None:
    """Print a sentence, wrapped between words on a terminal and unwrapped in a pipe."""
    _print_whole(console, wrap_words(line, console.width) if console.is_terminal else line)


def _print_whole(console: Console, line: str) -> None:
    """Print a command or a path without line breaks, so that it can be copied."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def _print_end(
    console: Console,
    run: RunDirectory,
    *,
    quiet: bool = True,
    as_json: bool,
    is_whole: bool = False,
) -> None:
    """Print where a training ended, before that its result if it wrote the whole of it."""
    if as_json:
        print_json(run_as_json(run))
        return
    if is_whole:
        print_result(console, run, quiet=quiet)
    print_state(console, run)


def _view(console: Console, run: RunDirectory, *, quiet: bool) -> SilentView:
    """Return the view of a training; the live one reads the rows so far, a quiet run does not."""
    if quiet:
        return SilentView()
    return LiveView(console, run) if console.is_terminal else LineView(console, run)


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
                view.generation(record, training.findings)
    finally:
        view.close()  # before anything is printed, because the next frame would overwrite it


def _print_position(console: Console, run: RunDirectory) -> None:
    """Say from where a run continues, or that it has nothing left to do."""
    done, total = run.journal.last_generation() + 1, run.config.generations
    if done and run.has_ended:
        folder = shlex.quote(str(folder_to_resume(run.path)))
        print_sentence(
            console,
            f"This run is finished ({done} of {total} generations): nothing is trained. For more: "
            f"germline resume {folder} generations={2 * total}",
        )
    elif done:
        print_sentence(console, f"Continuing after {done} of {total} generations.")
    elif run.ancestors:
        parent = run.ancestors[-1]
        print_sentence(
            console,
            f"A new run from the weights of {parent.path} after generation {parent.generation}, "
            f"with run seed {run.config.seed}.",
        )


def _scores(scores: Sequence[HeldOutScore], done: int) -> list[str]:
    if not any(score.n for score in scores):
        return ["held-out: no example could be scored"] if scores else []
    first, last, best = scores[0], scores[-1], best_score(scores)
    values = text_format.score(first)
    if last.generation != first.generation:
        values += f" -> {text_format.score(last)}"
    error = text_format.kind_of_error(first, last)
    line = f"held-out {last.metric}: {values} (mean and {error}, n {last.n})"
    if best is not None and best.mean not in (first.mean, last.mean):
        line += f", best: {_best(best)}"
    ends = (first, last) if last.generation != first.generation else (last,)
    if rewards := text_format.mean_rewards(*ends):
        line += f", {rewards}"
    if last.generation < done:
        line += f"; scored last after {last.generation} of {done} updates"
    by_scorer = (
        text_format.scorer_line(*dict.fromkeys((found[0], found[-1])))
        for found in scores_by_scorer(scores).values()
    )
    return [line, *by_scorer]


def _best(score: HeldOutScore) -> str:
    return f"{text_format.score(score)} after {score.generation} updates"


def _voters(run: RunDirectory) -> list[str]:
    voters = run.ensemble()
    if not voters:
        return []
    alone = text_format.number(voters[0]["score"])
    return [
        f"the score is that of a vote of {len(voters)} members; the member with the best training "
        f"fitness scores {alone}"
    ]


def _same(training: "Training") -> "Training":
    return training


def _interval(one: "SeedStatistics") -> str:
    from germline.evaluation.seed_statistics import FEWEST_SEEDS

    if not one.has_interval:
        return f"needs {FEWEST_SEEDS} seeds"
    return f"{text_format.number(one.low)} to {text_format.number(one.high)}"
