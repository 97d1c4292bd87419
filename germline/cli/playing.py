"""The verbs that let a model play: `germline eval` and `germline generate`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from germline.cli import completing

if TYPE_CHECKING:
    from germline.config import TaskConfig
    from germline.record import RunDirectory

Source = Annotated[
    str,
    typer.Argument(
        metavar="RUN|MODEL",
        help="A run directory, a model folder, a Hugging Face id, or nano.",
        autocompletion=completing.sources,
    ),
]

EVALUATION_SETTINGS = ("engine.", "engine=", "cell.", "graders.")
"""Settings besides `task.` that change an evaluation; the rest is refused, not ignored."""

EVALUATE_EXAMPLES = (
    "germline eval runs/sums --split test --kl",
    "germline eval nano --task countdown --limit 200",
    "germline eval Qwen/Qwen2.5-0.5B --task countdown engine.dtype=bfloat16",
    "germline eval runs/on-vllm engine=inprocess",
)
GENERATE_EXAMPLES = (
    'germline generate runs/sums "What is 7 plus 8?"',
    'germline generate nano "Once upon a time" --raw --temperature 0.8 --seed 1',
)


def evaluate(
    source: Source,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings task.*, engine.*, cell.* and graders.*.",
            autocompletion=completing.evaluation_settings,
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="Short name or file of the task; default: the run's own.",
            autocompletion=completing.tasks,
        ),
    ] = None,
    split: Annotated[Literal["train", "test"], typer.Option(help="Which examples.")] = "test",
    limit: Annotated[
        int | None, typer.Option(min=1, help="The first so many examples; default: all.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the completions go.")
    ] = None,
    *,
    kl: Annotated[
        bool,
        typer.Option("--kl", help="Say how far a run went from its start, and how its texts look."),
    ] = False,
) -> None:
    """Score a run or a model on a task.

    Prints the mean with its standard error, or a share with its 95 % interval, and the number of
    examples, and writes the completions. With --kl, also the exact KL from a run's weights to those
    it began with, along what it writes, and the share of texts that are no answers; where members
    vote, that of them all, each by itself.
    """
    settings = overrides or []
    others = _evaluation_settings(settings)
    played = _task(source, task, [one for one in settings if one.startswith("task.")])
    if kl:
        _refuse_kl(source, task)

    from germline import run  # after the complaints, because it brings torch
    from germline.cli import wording

    score, completions = run.evaluate(
        source, played, split=split, limit=limit, overrides=others, out=out
    )
    doubt = wording.caution(score)
    typer.echo(
        f"{score.metric} {wording.score(score)} "
        f"(mean and {wording.kind_of_error(score)}, n {score.n}), "
        f"mean reward {wording.number(score.reward)}{f'; {doubt}' if doubt else ''}"
    )
    voters = _voters(source)
    if voters:
        typer.echo(f"by vote: every answer is the one most of {voters} members give")
    if played is None and (chosen := _chosen(source)):
        typer.echo(f"played with the likeliest options: {', '.join(chosen)}")
    if kl:
        _show_divergence(source, split, limit, settings)
    typer.echo(f"completions: {completions}")


def generate(  # noqa: PLR0913 - the options of the command
    source: Source,
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT", help="What to say.")],
    *,
    raw: Annotated[
        bool, typer.Option("--raw", help="Give the prompt as it is, without the chat template.")
    ] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest completion.")] = 128,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Nucleus probability mass.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling noise.")] = 0,
    engine: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Engine that plays; default: the one the run has."),
    ] = None,
) -> None:
    """Let a model answer prompts."""
    from germline import run
    from germline.cli import wording

    completions = run.generate(
        source,
        prompts,
        chat=not raw,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        engine=engine,
    )
    for prompt, completion in zip(prompts, completions, strict=True):
        if len(prompts) > 1:
            typer.secho(f"> {prompt}", bold=True)
        # Exactly what the model wrote goes into a pipe; a terminal might obey it.
        typer.echo(wording.visible(completion.text) if sys.stdout.isatty() else completion.text)


def _task(source: str, task: str | None, overrides: Sequence[str]) -> "TaskConfig | None":
    """Find the task to play: the one named, or the run's own; None leaves the run's as it is."""
    from germline.config import load_config
    from germline.record import RunDirectory
    from germline.types import GermlineError

    if task is not None:
        return load_config({"task": task}, overrides).task
    if not (Path(source) / "run.json").exists():
        raise GermlineError(f"eval: {source} is no run directory, so name a task: --task countdown")
    if not overrides:
        return None
    return load_config(RunDirectory.open(Path(source)).config.model_dump(), overrides).task


def _refuse_kl(source: str, task: str | None) -> None:
    from germline.types import GermlineError

    if task is not None or not (Path(source) / "run.json").exists():
        found = f"--task {task}" if task is not None else f"{source}, which is no run directory"
        raise GermlineError(
            f"eval: --kl compares a run with its start on its own task, found {found}: name a run"
        )


def _show_divergence(
    source: str, split: Literal["train", "test"], limit: int | None, settings: Sequence[str]
) -> None:
    from germline.cli import wording
    from germline.run.diverging import diverged

    far, texts = diverged(source, split=split, limit=limit, overrides=settings)
    typer.echo(
        f"KL(now || start) {far.per_token:.3g} nats per token, {far.per_text:.3g} ± "
        f"{wording.number(far.standard_error)} per text (exact, along {far.texts} completions"
        f"{', of every member that votes' if _voters(source) else ''}); "
        f"perplexity under the start {far.perplexity:.3g}"
    )
    typer.echo(
        f"no answers {texts.garbage:.0%}: empty {texts.empty:.0%}, special tokens only "
        f"{texts.special_only:.0%}, loops {texts.looping:.0%}, improbable under the start "
        f"{texts.improbable or 0:.0%}"
    )


def _voters(source: str) -> int:
    """Count the members whose vote a run answers by; 0 where it has weights of its own."""
    run = _run(source)
    return run.voters if run else 0


def _chosen(source: str) -> list[str]:
    """Name the options that the centre of a run plays with, where some were searched."""
    from germline.report.odds import chosen

    run = _run(source)
    return chosen(run.generations()) if run else []


def _run(source: str) -> "RunDirectory | None":
    """Open a source that is a run directory."""
    from germline.record import RunDirectory

    return RunDirectory.open(Path(source)) if (Path(source) / "run.json").exists() else None


def _evaluation_settings(overrides: Sequence[str]) -> list[str]:
    from germline.types import GermlineError

    others = [one for one in overrides if not one.startswith("task.")]
    for one in others:
        if not one.startswith(EVALUATION_SETTINGS):
            raise GermlineError(
                f"eval: {one} changes nothing here; settings of an evaluation start with task., "
                f"{', '.join(EVALUATION_SETTINGS)}"
            )
    return others
