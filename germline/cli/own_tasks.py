"""The verbs for tasks of your own: `germline new task` and `germline check task`."""

import keyword
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli import completing

if TYPE_CHECKING:
    from germline.run.checking import Checkup, Finding

NEW_EXAMPLES = (
    "germline new task riddles",
    "germline new task experiments/riddles",
)
CHECK_EXAMPLES = (
    "germline check task riddles.py",
    "germline check task rows.jsonl task.reward=numeric",
    "germline check task riddles.py --model Qwen/Qwen2.5-0.5B-Instruct",
)

new = typer.Typer(
    help="Write the starting point of a task.", no_args_is_help=True, rich_markup_mode=None
)
check = typer.Typer(
    help="Try a task before training on it.", no_args_is_help=True, rich_markup_mode=None
)

STARTING_POINT = Path(__file__).with_name("starting_point")
FILES = {"task.txt": "{}.py", "test.txt": "test_{}.py", "config.txt": "{}.yaml"}
"""What is written for a new task, by the template it is made of."""


def _epilog(lines: tuple[str, ...]) -> str:
    """Show examples under the help of a verb, their lines left as they are."""
    return "\b\nExamples:\n" + "".join(f"  {one}\n" for one in lines)


@new.command("task", epilog=_epilog(NEW_EXAMPLES))
def new_task(
    name: Annotated[
        Path, typer.Argument(metavar="NAME", help="Name of the task; a folder may stand before it.")
    ],
) -> None:
    """Write a commented starting point: NAME.py, a test beside it, and a config that trains on it.

    Everything works as written: change it bit by bit.
    """
    from germline.types import GermlineError

    _refuse_name(name.name)
    files = {template: name.with_name(file.format(name.name)) for template, file in FILES.items()}
    taken = [str(file) for file in files.values() if file.exists()]
    if taken:
        raise GermlineError(
            f"new task: {', '.join(taken)} exists already; choose another name, or remove it"
        )
    if not name.parent.is_dir():
        raise GermlineError(f"new task: there is no folder {str(name.parent)!r}; make it first")
    for template, file in files.items():
        text = (STARTING_POINT / template).read_text(encoding="utf-8")
        file.write_text(text.replace("NAME", name.name), encoding="utf-8")
        typer.echo(f"wrote {file}")
    task, test, config = (str(file) for file in files.values())
    typer.echo(f"\nNext:\n  germline check task {task}\n  pytest {test}\n  germline train {config}")


@check.command("task", epilog=_epilog(CHECK_EXAMPLES))
def check_task(
    task: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME",
            help="A task file (.py or .jsonl), or the short name of a task.",
            autocompletion=completing.tasks,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings task.* and graders.*.",
            autocompletion=completing.settings,
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(metavar="MODEL", help="Whose tokenizer and chat template make the prompts."),
    ] = "nano",
    prompts: Annotated[int, typer.Option(min=0, help="Prompts to show.")] = 10,
) -> None:
    """Try a reward on gold, empty and hostile answers; show prompts as the model sees them.

    Ends with status 1 when something is wrong.
    """
    from germline.types import GermlineError

    for one in overrides or []:
        if not one.startswith(("task.", "graders.")):
            raise GermlineError(
                f"check task: {one} changes nothing here; settings start with task. or graders."
            )

    from germline import run  # after the complaints, because it takes a while

    checkup = run.check_task(task, overrides or [], model=model, prompts=prompts)
    _show_prompts(checkup)
    _show_findings(checkup)
    if checkup.problems:
        raise typer.Exit(1)


def _refuse_name(name: str) -> None:
    from germline.types import GermlineError

    if not name.isidentifier() or keyword.iskeyword(name):
        hint = "".join(one if one.isalnum() else "_" for one in name.removesuffix(".py"))
        raise GermlineError(
            f"new task: {name!r} cannot name a Python file that tests import; use letters, digits "
            f"and _, such as {'_' * hint[:1].isdigit()}{hint or 'my_task'}"
        )
    if name in sys.stdlib_module_names:
        raise GermlineError(
            f"new task: {name} is a module of Python, which a file of that name would hide; choose "
            f"another name, such as {name}_task"
        )


def _show_prompts(checkup: "Checkup") -> None:
    from germline.cli.wording import visible

    for number, prompt in enumerate(checkup.prompts, start=1):
        head = f"prompt {number} of {len(checkup.prompts)} ({prompt.tokens} tokens)"
        typer.secho(head, bold=True)
        typer.echo(visible(prompt.text).rstrip("\n"))
        typer.secho(f"gold answer: {visible(prompt.answer) or '-'}\n", dim=True)


def _show_findings(checkup: "Checkup") -> None:
    from germline.cli import tables

    columns = ("tried", "number", "reward", "verdict", "remark")
    tables.show(columns, [_row(one) for one in checkup.findings])


def _row(finding: "Finding") -> tuple[str, ...]:
    from germline.cli.wording import number

    rewards = finding.rewards
    span = "-"
    if rewards:
        low, high = number(min(rewards)), number(max(rewards))
        span = low if low == high else f"{low} to {high}"
    return finding.tried, str(finding.count), span, finding.verdict, finding.remark
