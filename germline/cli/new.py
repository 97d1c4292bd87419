"""The commands `germline new`: `task` writes a template for a custom task; see new_config too."""

import keyword
import sys
from pathlib import Path
from typing import Annotated

import typer

from germline.cli.arguments import examples_epilog
from germline.cli.json_output import AsJson, print_json
from germline.cli.new_config import NEW_CONFIG_EXAMPLES, new_config

NEW_EXAMPLES = (
    "germline new task riddles",
    "germline new task experiments/riddles",
)

new = typer.Typer(
    help="Write a template for a custom task, or a config for a model.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
STARTING_POINT = Path(__file__).with_name("starting_point")
FILES = {"task.txt": "{}.py", "test.txt": "test_{}.py", "config.txt": "{}.yaml"}
"""Template -> file name, for each file of a new task."""


@new.command("task", epilog=examples_epilog(NEW_EXAMPLES))
def new_task(
    name: Annotated[
        Path, typer.Argument(metavar="NAME", help="Name of the task; it may include a folder.")
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Write a commented template: NAME.py, a test of it, and a config that trains on it.

    All three files work as written and are meant to be edited.
    """
    from germline.types import GermlineError

    _check_name(name.name)
    files = {template: name.with_name(file.format(name.name)) for template, file in FILES.items()}
    taken = [str(file) for file in files.values() if file.exists()]
    if taken:
        raise GermlineError(
            f"new task: {', '.join(taken)} already exists; choose another name, or remove it"
        )
    if not name.parent.is_dir():
        raise GermlineError(f"new task: there is no folder {str(name.parent)!r}; create it first")
    for template, file in files.items():
        text = (STARTING_POINT / template).read_text(encoding="utf-8")
        file.write_text(text.replace("NAME", name.name), encoding="utf-8")
    task, test, config = (str(file) for file in files.values())
    tests = f"python -m pytest {test}"
    commands = (f"germline check task {task}", tests, f"germline train {config}")
    if as_json:
        print_json({"files": [task, test, config], "next": commands})
        return
    for file in files.values():
        typer.echo(f"wrote {file}")
    notes = ("", "  # pip install pytest installs it", "")
    lines = (f"  {command}{note}" for command, note in zip(commands, notes, strict=True))
    typer.echo("\nNext:\n" + "\n".join(lines))


new.command("config", epilog=examples_epilog(NEW_CONFIG_EXAMPLES))(new_config)


def _check_name(name: str) -> None:
    from germline.types import GermlineError

    if not name.isidentifier() or keyword.iskeyword(name):
        hint = "".join(char if char.isalnum() else "_" for char in name.removesuffix(".py"))
        raise GermlineError(
            f"new task: {name!r} cannot name a Python file that tests import; use letters, digits "
            f"and _, such as {'_' * hint[:1].isdigit()}{hint or 'my_task'}"
        )
    if name in sys.stdlib_module_names:
        raise GermlineError(
            f"new task: {name} is a module of the standard library, which a file of that name "
            f"would hide; choose another name, such as {name}_task"
        )
