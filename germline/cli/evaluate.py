"""The command `germline eval`: score a run or a model on a task."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli import shell_completion
from germline.cli.arguments import (
    Generations,
    Limit,
    Source,
    Split,
    TaskOption,
    check_prefixes,
    generation_of,
    runs_of_source,
    split_words,
    task_section,
)
from germline.cli.json_output import AsJson, print_json
from germline.cli.word_wrap import print_stderr

if TYPE_CHECKING:
    from germline.config import TaskConfig

EVALUATION_SETTINGS = (
    "task.",
    "engine.",
    "engine=",
    "microbatch.",
    "graders.",
    "held_out.scorers",
)
"""Prefixes of settings that have an effect here; other settings are refused."""

EVALUATE_EXAMPLES = (
    "germline eval runs/sums --split test --kl",
    "germline eval nano --task countdown --limit 200",
    "germline eval Qwen/Qwen2.5-0.5B --task countdown engine.dtype=bfloat16",
    "germline eval runs/on-vllm engine=inprocess",
    "germline eval runs/sums nano my-adapter --limit 200",
    "germline eval runs/sums -g -1 -g 25 -g best --json",
)


def evaluate(  # noqa: PLR0913 - the options of a command
    source: Source,
    others: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|MODEL|KEY=VALUE",
            help="More runs, models or adapters, for one table; and settings task.*, engine.*, "
            "microbatch.*, graders.* and held_out.scorers.*.",
            autocompletion=shell_completion.complete_settings_of(EVALUATION_SETTINGS),
        ),
    ] = None,
    task: TaskOption = None,
    split: Split = "test",
    limit: Limit = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Output file of the completions; default: completions-TASK-SPLIT.jsonl (with "
            "--generation, completions-TASK-SPLIT-generation-G.jsonl) in the run directory, or "
            "completions-MODEL-TASK-SPLIT.jsonl in the working directory.",
        ),
    ] = None,
    generation: Generations = None,
    *,
    kl: Annotated[
        bool,
        typer.Option("--kl", help="Also measure the KL from the start of the run, and its texts."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Score runs, models and PEFT adapters on a task.

    A folder of several run seeds (train seeds=0..4) stands for its runs.

    Prints the mean with its standard error, or a share with its 95 % interval, and the number of
    examples, and writes the completions to a file. With --kl it also prints the exact KL of a run's
    weights from its starting weights, along its completions, and the share of degenerate texts. For
    a run whose members vote, the KL is the mean over these members.
    """
    more, settings = split_words(others or [])
    check_prefixes(settings, EVALUATION_SETTINGS, "eval", "an evaluation")
    task_settings = [setting for setting in settings if setting.startswith("task.")]
    overrides = [setting for setting in settings if not setting.startswith("task.")]
    sources = [run for given in (source, *more) for run in runs_of_source(given)]
    generations = [generation_of("eval", text) for text in generation or [""]]
    _check_single(sources, generations, out=out, kl=kl)
    section = task_section("eval", sources[0], task, task_settings)
    if kl:
        _check_kl(sources[0], task)

    from germline.cli import evaluation_table  # after the cheap checks, because it imports torch
    from germline.run.kl import measure_kl

    rows = evaluation_table.score_sources(
        sources,
        section or _task_of_first_run(sources),
        generations,
        split=split,
        limit=limit,
        overrides=overrides,
        out=out,
    )
    if kl:
        far, texts = measure_kl(sources[0], split=split, limit=limit, overrides=settings)
        rows = [replace(rows[0], kl=far, texts=texts)]
    if as_json:
        print_json([evaluation_table.row_values(row) for row in rows])
    elif len(rows) == 1:
        evaluation_table.print_evaluation(rows[0], own_task=section is None)
    else:
        evaluation_table.print_rows(rows)


def _check_single(
    sources: Sequence[str],
    generations: Sequence[object],
    *,
    out: Path | None,
    kl: bool,
) -> None:
    """Refuse options that fit one source and one generation, where there are more.

    Raises:
        GermlineError: `--out` or `--kl` was given with several, or `--kl` with a generation.
    """
    from germline.types import GermlineError

    several = len(sources) > 1 or len(generations) > 1
    if out is not None and several:
        raise GermlineError(
            f"eval: --out={out} names one file for the completions of several: leave it out, and "
            "each has a file of its own"
        )
    if kl and (several or generations != [None]):
        raise GermlineError(
            "eval: --kl measures the newest weights of one run: leave out the other sources and "
            "--generation"
        )


def _task_of_first_run(sources: Sequence[str]) -> "TaskConfig | None":
    """Return the task of the first run, on which the other sources are scored too."""
    from germline.cli.evaluation_table import run_of

    first = run_of(sources[0])
    if first is None or len(sources) == 1:
        return None
    task = first.config.task
    for other in filter(None, map(run_of, sources[1:])):
        if other.config.task.title != task.title:
            print_stderr(
                f"eval: {other.path} was trained on {other.config.task.title}; here it is scored "
                f"on {task.title}, the task of {sources[0]} (--task names another)"
            )
    return task


def _check_kl(source: str, task: str | None) -> None:
    from germline.types import GermlineError

    if task is not None or not (Path(source) / "run.json").exists():
        found = f"--task {task}" if task is not None else f"{source}, which is not a run directory"
        raise GermlineError(
            "eval: --kl compares a run with its start on the run's own task, found "
            f"{found}: give a run directory, and no --task"
        )
