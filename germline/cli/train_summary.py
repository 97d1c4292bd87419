"""The summary at the end of a training: scores before and after, findings, and next commands."""

import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from germline.cli import text_format
from germline.cli.word_wrap import wrap_words
from germline.record import HeldOutRow, RunDirectory
from germline.record.best_generation import best_score
from germline.record.metrics_rows import paired_samples, scores_by_scorer
from germline.report.findings import findings
from germline.report.next_commands import next_commands, resume_command
from germline.report.text_format import center_options
from germline.types import HeldOutScore

SHOWN_SAMPLES = 5


def print_result(console: Console, run: RunDirectory, *, quiet: bool) -> None:
    """Print held-out answers and scores before and after training, findings, paths of files."""
    scores = run.held_out()
    if not quiet and len(scores) > 1 and scores[0].samples and scores[-1].samples:
        console.print(completions_table(scores[0], scores[-1], console.width))
    for line in (
        *_scores([row.score for row in scores], run.journal.last_generation() + 1),
        *_voters(run),
        *(f"prompt options of the center: {one}" for one in center_options(run.generations())),
        *(f"{finding.level}: {finding.sentence}" for finding in findings(run)),
    ):
        print_sentence(console, line)
    _print_whole(console, f"run directory: {run.path}")
    for name, path in (("figure", run.figure), ("report", run.report)):
        if path.exists():
            _print_whole(console, f"{name + ':':15}{path}")


def print_stopped(console: Console, run: RunDirectory) -> None:
    """Print after which generation a training stopped, and the command that resumes it."""
    last = run.journal.last_generation()
    done = f"{last + 1} of {run.config.generations} done"
    where = f"after generation {last} ({done})" if last >= 0 else "before the first generation"
    path = shlex.quote(str(run.path))
    print_sentence(console, f"Stopped {where}. Resume with: germline resume {path}")


def print_stopped_early(console: Console, run: RunDirectory) -> None:
    """Say that a training stopped before its last generation as its score no longer improved."""
    best = run.stopped_early
    if best is None:
        return
    done, patience = run.journal.last_generation() + 1, run.config.held_out.patience
    print_sentence(
        console,
        f"Stopped early after {done} of {run.config.generations} generations: the last {patience} "
        f"held-out scores were not better than the best one, {_best(best)} "
        f"(held_out.patience={patience}). To train on: {resume_command(run)}",
    )


def print_next_commands(console: Console, run: RunDirectory) -> None:
    """Print the commands that use the run."""
    _print_whole(console, "next:")
    for command in next_commands(run):
        _print_whole(console, f"  {command}")


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
    if rewards := text_format.mean_rewards(first, last):
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


def print_sentence(console: Console, line: str) -> None:
    """Print a sentence, wrapped between words on a terminal and unwrapped in a pipe."""
    shown = wrap_words(line, console.width) if console.is_terminal else line
    _print_whole(console, shown)


def _print_whole(console: Console, line: str) -> None:
    """Print a command or a path without line breaks, so that it can be copied."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)
