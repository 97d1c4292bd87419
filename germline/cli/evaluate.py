"""The command `germline eval`: score a run or a model on a task."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from germline.cli import completion
from germline.cli.arguments import (
    Source,
    check_prefixes,
    generation_of,
    runs_of_source,
    split_words,
    task_section,
)
from germline.cli.json_output import AsJson
from germline.cli.word_wrap import print_stderr, print_stdout

if TYPE_CHECKING:
    from germline.config import TaskConfig
    from germline.evaluation.degenerate_text import DegenerateTextShares
    from germline.evaluation.kl_divergence import KlDivergence
    from germline.record import RunDirectory

EVALUATION_SETTINGS = ("engine.", "engine=", "microbatch.", "graders.", "held_out.scorers")
"""Prefixes, besides `task.`, of settings that have an effect here; other settings are refused."""

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
            autocompletion=completion.complete_evaluation_settings,
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="Short name, file or config of the task; default: the first run's own.",
            autocompletion=completion.complete_tasks,
        ),
    ] = None,
    split: Annotated[
        Literal["train", "test"], typer.Option(help="Split of the examples.")
    ] = "test",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only the first N examples; default: all.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Output file of the completions; default: completions-TASK-SPLIT.jsonl (with "
            "--generation, completions-TASK-SPLIT-generation-G.jsonl) in the run directory, or "
            "completions-MODEL-TASK-SPLIT.jsonl in the working directory.",
        ),
    ] = None,
    generation: Annotated[
        list[str] | None,
        typer.Option(
            "--generation",
            "-g",
            metavar="GENERATION",
            help="Weights of a run after this generation, once for each: a number, -1 for the "
            "start, or best (highest held-out score). Default: the newest.",
        ),
    ] = None,
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
    overrides = _evaluation_settings(settings)
    sources = [run for given in (source, *more) for run in runs_of_source(given)]
    generations = [generation_of("eval", text) for text in generation or []]
    _check_single(sources, generations, out=out, kl=kl)
    task_settings = [setting for setting in settings if setting.startswith("task.")]
    section = task_section("eval", sources[0], task, task_settings)
    if kl:
        _check_kl(sources[0], task)

    from germline import run  # after the cheap checks, because it imports torch
    from germline.cli import evaluation_table, text_format
    from germline.run.kl import measure_kl

    if as_json or len(sources) > 1 or len(generations) > 1:
        rows = evaluation_table.score_sources(
            sources,
            section if task is not None or task_settings else _task_of_first_run(sources),
            generations or [None],
            split=split,
            limit=limit,
            overrides=overrides,
            out=out,
        )
        if kl:
            far, texts = measure_kl(sources[0], split=split, limit=limit, overrides=settings)
            rows = [replace(rows[0], kl=far, texts=texts)]
        evaluation_table.print_rows(rows, as_json=as_json)
        return
    (source,) = sources
    score, completions = run.evaluate(
        source,
        section,
        split=split,
        limit=limit,
        overrides=overrides,
        out=out,
        generation=generations[0] if generations else None,
    )
    caution = text_format.caution(score)
    print_stdout(
        f"{score.metric} {text_format.score(score)} "
        f"(mean and {text_format.kind_of_error(score)}, n {score.n}), "
        f"mean reward {text_format.number(score.reward)}{f'; {caution}' if caution else ''}"
    )
    for one in score.scorers:
        complete = f" (n {one.n})" if one.n == len(one.values) else ""  # else the line says it
        print_stdout(f"{text_format.scorer_line(one)}{complete}")
    voters = _voters(source)
    if voters:
        print_stdout(f"by vote: each answer is the one that most of {voters} members give")
    if section is None and (options := _prompt_options(source)):
        print_stdout(f"with the most likely prompt options: {', '.join(options)}")
    if kl:
        _show_divergence(source, *measure_kl(source, split=split, limit=limit, overrides=settings))
    print_stdout(f"completions: {completions}")


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
    if kl and (several or generations):
        raise GermlineError(
            "eval: --kl measures the newest weights of one run: leave out the other sources and "
            "--generation"
        )


def _task_of_first_run(sources: Sequence[str]) -> "TaskConfig | None":
    """Return the task of the first run, on which the other sources are scored too."""
    first = _run(sources[0])
    if first is None or len(sources) == 1:
        return None
    task = first.config.task
    for other in filter(None, map(_run, sources[1:])):
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


def _show_divergence(source: str, kl: "KlDivergence", texts: "DegenerateTextShares") -> None:
    from germline.cli import text_format

    print_stdout(
        f"KL(now || start) {kl.per_token:.3g} nats per token, {kl.per_text:.3g} ± "
        f"{text_format.number(kl.standard_error)} per text (exact, along {kl.texts} completions"
        f"{' of each member that votes' if _voters(source) else ''}); "
        f"perplexity under the start model {kl.perplexity:.3g}"
    )
    print_stdout(
        f"degenerate texts {texts.garbage:.0%}: empty {texts.empty:.0%}, special tokens only "
        f"{texts.special_only:.0%}, loops {texts.looping:.0%}, improbable under the start "
        f"model {texts.improbable or 0:.0%}"
    )


def _voters(source: str) -> int:
    """Return the number of members that vote for a run's answers; 0 if its center answers."""
    from germline.run.load_run import count_voters

    run = _run(source)
    return count_voters(run) if run else 0


def _prompt_options(source: str) -> list[str]:
    """Return the prompt options of a run's center, if prompt options were searched."""
    from germline.report.prompt_option_charts import center_options

    run = _run(source)
    return center_options(run.generations()) if run else []


def _run(source: str) -> "RunDirectory | None":
    """Open a source if it is a run directory."""
    from germline.record import RunDirectory

    return RunDirectory.open(Path(source)) if (Path(source) / "run.json").exists() else None


def _evaluation_settings(overrides: Sequence[str]) -> list[str]:
    check_prefixes(overrides, ("task.", *EVALUATION_SETTINGS), "eval", "an evaluation")
    return [override for override in overrides if not override.startswith("task.")]
