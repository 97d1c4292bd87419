"""The command `germline check`: check a task's reward and prompts before training."""

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli.arguments import split_words
from germline.cli.output import AsJson, print_json, print_table
from germline.errors import count_of

if TYPE_CHECKING:
    from germline.run.task_check import TaskCheckReport

CHECK_EXAMPLES = (
    "germline check riddles.py",
    "germline check rows.jsonl task.reward=numeric",
    "germline check riddles.py --model Qwen/Qwen2.5-0.5B-Instruct",
)


def check(
    task: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME",
            help="A task file (.py, .jsonl, .json, .csv, .tsv, .parquet or .arrow), a config, or "
            "the short name of a task (for the hub: dataset task.path=ORG/NAME).",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings task.* and graders.*.",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(metavar="MODEL", help="Model whose tokenizer and chat template are used."),
    ] = "nano",
    *,
    as_json: AsJson = False,
) -> None:
    """Check a task before training on it.

    Grades gold, empty and hostile answers with its reward. Shows prompts as the model sees
    them. Exits with status 1 when something is wrong.
    """
    others, _ = split_words("check", overrides, ("task.", "graders."))
    if others:
        raise typer.BadParameter(f"{others[0]!r} is no setting, such as task.stop=TEXT")

    from germline import run  # after the cheap checks, because this import is slow

    report = run.check_task(task, overrides or [], model=model)
    if as_json:
        print_json(
            {
                "healthy": not report.problems,
                "checks": [asdict(one) for one in report.findings],
                "prompts": [asdict(one) for one in report.prompts],
                "printed": report.printed,
            }
        )
    else:
        _show(report)
        if not report.problems:
            words = ["germline", "eval", model, "--task", task, *(overrides or [])]
            typer.echo(f"next:\n  {shlex.join(words)}  # what the model earns before training")
    if report.problems:
        raise typer.Exit(1)


def _show(report: "TaskCheckReport") -> None:
    from germline.report.text_format import both_ends, number

    for place, prompt in enumerate(report.prompts, start=1):
        head = f"prompt {place} of {len(report.prompts)} ({count_of(prompt.tokens, 'tokens')})"
        typer.secho(head, bold=True)
        typer.echo(both_ends(prompt.text).rstrip("\n"))
        typer.secho(f"gold answer: {both_ends(prompt.answer) or '-'}\n", dim=True)
    rows = []
    for row in report.findings:
        ends = (min(row.rewards), max(row.rewards)) if row.rewards else ()
        reward = " to ".join(dict.fromkeys(map(number, ends))) or "-"
        rows.append((row.tried, str(row.count), reward, row.verdict, row.remark))
    print_table(("tried", "number", "reward", "verdict", "remark"), rows)
    if report.printed is not None:
        typer.echo(f"\nThe reward printed text; it is in {report.printed}")
