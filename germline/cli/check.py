"""The command `germline check task`: check a task's reward and prompts before training."""

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli import shell_completion
from germline.cli.arguments import examples_epilog
from germline.cli.json_output import AsJson, print_json
from germline.cli.word_wrap import print_stdout

if TYPE_CHECKING:
    from germline.run.task_check import TaskCheckReport
    from germline.run.task_check_row import TaskCheckRow

CHECK_EXAMPLES = (
    "germline check task riddles.py",
    "germline check task rows.jsonl task.reward=numeric",
    "germline check task riddles.py --model Qwen/Qwen2.5-0.5B-Instruct",
)

check = typer.Typer(
    help="Check a task before training on it.", no_args_is_help=True, rich_markup_mode=None
)


@check.command("task", epilog=examples_epilog(CHECK_EXAMPLES))
def check_task(
    task: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME",
            help="A task file (.py, .jsonl, .json, .csv, .parquet or .arrow), a config, or the "
            "short name of a task (for the hub: dataset task.path=ORG/NAME).",
            autocompletion=shell_completion.complete_tasks,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings task.* and graders.*.",
            autocompletion=shell_completion.complete_settings,
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(metavar="MODEL", help="Model whose tokenizer and chat template are used."),
    ] = "nano",
    prompts: Annotated[
        int,
        typer.Option(
            min=0, help="Prompts to show; of an environment, one with an example episode."
        ),
    ] = 3,
    *,
    as_json: AsJson = False,
) -> None:
    """Grade gold, wrong, empty and hostile answers with a task's reward, and show prompts.

    Prompts are shown as the model sees them; an environment is played for one episode. Exits with
    status 1 when something is wrong.
    """
    from germline.types import GermlineError

    for override in overrides or []:
        if not override.startswith(("task.", "graders.")):
            raise GermlineError(
                f"check task: {override} has no effect here; use settings that start with task. "
                "or graders."
            )

    from germline import run  # after the cheap checks, because this import is slow

    report = run.check_task(task, overrides or [], model=model, prompts=prompts)
    if as_json:
        print_json(
            {
                "healthy": not report.problems,
                "checks": [asdict(one) for one in report.findings],
                "prompts": [asdict(one) for one in report.prompts],
                "episode": None if report.episode is None else asdict(report.episode),
                "printed": report.printed,
            }
        )
    else:
        _show_prompts(report)
        _show_episode(report)
        _show_findings(report)
        if report.printed is not None:
            typer.echo(f"\nThe reward printed text; it is in {report.printed}")
        if not report.problems:
            words = ["germline", "eval", model, "--task", task, *(overrides or [])]
            print_stdout("next:")
            print_stdout(f"  {shlex.join(words)}  # what the model earns before training")
    if report.problems:
        raise typer.Exit(1)


def _show_prompts(report: "TaskCheckReport") -> None:
    from germline.cli.text_format import escape_control_characters

    for number, prompt in enumerate(report.prompts, start=1):
        head = f"prompt {number} of {len(report.prompts)} ({prompt.tokens} tokens)"
        typer.secho(head, bold=True)
        typer.echo(escape_control_characters(prompt.text).rstrip("\n"))
        typer.secho(f"gold answer: {escape_control_characters(prompt.answer) or '-'}\n", dim=True)


def _show_episode(report: "TaskCheckReport") -> None:
    from germline.cli.text_format import escape_control_characters, number

    episode = report.episode
    if episode is None:
        return
    replies = "the gold answer" if episode.reply else "empty"
    typer.secho(f"example episode after this prompt (every reply is {replies})", bold=True)
    for turn in episode.turns:
        who = "model" if turn.role == "assistant" else "environment"
        typer.echo(f"{who}: {escape_control_characters(turn.content) or '-'}")
    ended = "max_turns is reached" if episode.is_cut else "the environment ends it"
    ended = f"it fails: {episode.grade.failure}" if episode.grade.failure else ended
    parts = ", ".join(f"{name} {number(part)}" for name, part in episode.grade.parts.items())
    typer.secho(f"{ended}; reward {number(episode.grade.reward)} ({parts})\n", dim=True)


def _show_findings(report: "TaskCheckReport") -> None:
    from germline.cli import tables

    columns = ("tried", "number", "reward", "verdict", "remark")
    tables.print_table(columns, [_row(finding) for finding in report.findings])


def _row(finding: "TaskCheckRow") -> tuple[str, ...]:
    from germline.cli.text_format import number

    rewards = finding.rewards
    span = "-"
    if rewards:
        low, high = number(min(rewards)), number(max(rewards))
        span = low if low == high else f"{low} to {high}"
    return finding.tried, str(finding.count), span, finding.verdict, finding.remark
