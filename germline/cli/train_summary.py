"""What a training says at its end: before and after, where things are, what to type next."""

import shlex
import statistics

from rich.console import Console
from rich.table import Table
from rich.text import Text

from germline.cli import text_format
from germline.comm_bytes import CommBytes
from germline.record import HeldOutRow, RunDirectory
from germline.record.best_generation import best_score, signed_score
from germline.report.prompt_option_charts import center_options
from germline.report.score_decline_advice import score_decline_advice
from germline.types import HeldOutScore

SHOWN_SAMPLES = 5


def print_result(console: Console, run: RunDirectory, *, quiet: bool) -> None:
    """Print held-out completions and scores before and after, and where things are."""
    scores = run.held_out()
    if not quiet and len(scores) > 1 and scores[0].samples and scores[-1].samples:
        console.print(completions_table(scores[0], scores[-1], console.width))
    for line in (
        *_scores(scores),
        *print_score_decline(run),
        *_voters(run),
        *_choices(run),
        *_traffic(run),
        *_paths(run),
    ):
        _say(console, line)


def print_score_decline(run: RunDirectory) -> list[str]:
    """Say that a run is getting worse, and what helps; nothing where it is not."""
    scores = [one.score for one in run.held_out()]
    found = score_decline_advice(run.config, run.path, run.generations(), scores)
    return [found.text, *(f"  {one}" for one in found.commands)] if found else []


def print_stopped(console: Console, run: RunDirectory) -> None:
    """Say where a training stopped and how to go on."""
    last = run.journal.last_generation()
    done = f"{last + 1} of {run.config.generations} done"
    where = f"after generation {last} ({done})" if last >= 0 else "before the first generation"
    _say(console, f"Stopped {where}. Resume with: germline resume {_quoted(run)}")


def print_stopped_early(console: Console, run: RunDirectory) -> None:
    """Say that a training stopped before its last generation as its score no longer improved."""
    best = run.stopped_early
    if best is None:
        return
    done, patience = run.journal.last_generation() + 1, run.config.held_out.patience
    _say(
        console,
        f"Stopped early after {done} of {run.config.generations} generations: the last {patience} "
        f"held-out scores were not better than the best one, {_best(best)} "
        f"(held_out.patience={patience}). To train on: "
        f"germline resume {_quoted(run)} held_out.patience={2 * (patience or 1)}",
    )


def print_next_commands(console: Console, run: RunDirectory) -> None:
    """Print what can be typed next."""
    path = _quoted(run)
    lines = [
        "next:",
        f'  germline generate {path} "your prompt"',
    ]
    if not run.config.engine.has_own_model:  # It has no format that others could read.
        lines.append(f"  germline export {path} --out my-model")
    if not run.config.strategy.whole_run and not run.stopped_early:
        lines.append(f"  germline resume {path} generations={2 * run.config.generations}")
    for line in lines:
        _say(console, line)


def completions_table(before: HeldOutRow, after: HeldOutRow, width: int) -> Table:
    """Tabulate what the base model and the trained one answer to the same held-out prompts."""
    table = Table(title="held-out prompts, before and after", title_justify="left")
    cell = max(12, (width - 13) // 4)
    for name in ("prompt", "wanted", "before", "after"):
        table.add_column(name, overflow="fold")
    later = {sample.prompt: sample for sample in after.samples}
    shown = [sample for sample in before.samples if sample.prompt in later][:SHOWN_SAMPLES]
    for sample in shown:
        texts = (
            sample.prompt,
            sample.answer,
            sample.completion,
            later[sample.prompt].completion,
        )
        table.add_row(*(Text(text_format.one_line_excerpt(text, 3 * cell)) for text in texts))
    return table


def _scores(scores: list[HeldOutRow]) -> list[str]:
    if not scores:
        return []
    first, last = scores[0].score, scores[-1].score
    if not any(one.score.n for one in scores):
        return ["held-out: the task has no example that could be scored"]
    values = text_format.score(first)
    if last.generation != first.generation:
        values += f" -> {text_format.score(last)}"
    error = text_format.kind_of_error(last)
    said = f"held-out {last.metric}: {values} (mean and {error}, n {last.n})"
    best = best_score([one.score for one in scores])
    if best is not None and last.generation != first.generation:
        same = signed_score(best) == signed_score(last)
        said += ", best: the final one" if same else f", best: {_best(best)}"
    return [said]


def _best(score: HeldOutScore) -> str:
    return f"{text_format.score(score)} after {score.generation} updates"


def _voters(run: RunDirectory) -> list[str]:
    voters = run.ensemble()
    if not voters:
        return []
    alone = text_format.number(voters[0]["score"])
    return [f"by vote of {len(voters)} members; the best in training alone scores {alone}"]


def _choices(run: RunDirectory) -> list[str]:
    options = center_options(run.generations())
    return [f"the center plays with {', '.join(options)}"] if options else []


def _traffic(run: RunDirectory) -> list[str]:
    found = [CommBytes(**row["traffic"]) for row in run.generations() if "traffic" in row]
    members = run.config.strategy.population
    if not found or not members:
        return []
    text, rest = (
        statistics.median(one) / members / 1000
        for one in ([one.text for one in found], [one.non_text for one in found])
    )
    return [
        f"to and from engines: {rest:.1f} kB per member and generation, besides {text:.1f} kB of "
        "prompts and completions"
    ]


def _paths(run: RunDirectory) -> list[str]:
    figure = [f"figure:        {run.figure}"] if run.figure.exists() else []
    report = [f"report:        {run.report}"] if run.report.exists() else []
    return [f"run directory: {run.path}", *figure, *report]


def _quoted(run: RunDirectory) -> str:
    return shlex.quote(str(run.path))


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, markup=False, highlight=False)
