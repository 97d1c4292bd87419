"""Arguments that several commands share, and the examples under their help."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from germline.cli.output import print_stderr

if TYPE_CHECKING:
    from pydantic import BaseModel

    from germline.config import TaskConfig

MODEL_SETTINGS = ("engine.", "engine=", "microbatch.")
"""Prefixes of settings that have an effect on what a run or a model generates."""

AnySection = TypeVar("AnySection", bound="BaseModel")

Source = Annotated[
    str,
    typer.Argument(
        metavar="RUN|MODEL", help="A run directory, a model folder, a Hugging Face id, or nano."
    ),
]

ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help=(
            "A config file, the name of a shipped config (germline list configs), or a run "
            "directory, whose config is repeated."
        ),
    ),
]

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE|FILE",
        help="Settings, or YAML files of settings, that override the config, in this order.",
    ),
]

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run directory.")]


def read_generation(text: str) -> int | Literal["best"]:
    """Read a generation on the command line: a number, or `best`."""
    if text == "best":
        return "best"
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text} is neither a number nor best: use best, the number of a generation from 0 on, "
            "or -1, the start"
        ) from None


def _generation(several: str = "") -> Any:
    return typer.Option(
        "--generation",
        "-g",
        metavar="GENERATION",
        parser=read_generation,
        help="The weights of a run after this generation: a number, -1 for the start, or best "
        f"(highest held-out score){several}. Default: the newest.",
    )


Generation = Annotated[Any, _generation()]
Generations = Annotated[list[Any] | None, _generation("; repeatable")]

TaskOption = Annotated[
    str | None,
    typer.Option(
        metavar="TASK", help="Short name, file or config of the task; default: the first run's own."
    ),
]

EvaluationSplit = Annotated[
    Literal["train", "test", "unseen"],
    typer.Option(
        help="Split of the examples; unseen: test examples that no held-out score of a run was of."
    ),
]

Limit = Annotated[
    int | None, typer.Option(min=1, help="Use only the first N examples; default: all.")
]


def split_words(
    command: str, words: Sequence[str] | None, prefixes: tuple[str, ...]
) -> tuple[list[str], list[str]]:
    """Tell sources from settings, which have an equals sign and are no folders.

    Raises:
        GermlineError: a setting has no effect in this command: it has none of its prefixes.
    """
    settings = [word for word in words or () if "=" in word and not Path(word).exists()]
    for setting in settings:
        if not setting.startswith(prefixes):
            from germline.types import GermlineError

            raise GermlineError(
                f"{command}: {setting} has no effect here; settings start with "
                f"{', '.join(prefixes)}"
            )
    return [word for word in words or () if word not in settings], settings


def read_section(
    command: str, section: type[AnySection], settings: Sequence[str], prefix: str, **values: object
) -> AnySection:
    """Return a section whose settings are given as words: `judge.model=large`."""
    from germline.config.base import make_section

    parts = (setting.removeprefix(prefix).partition("=") for setting in settings)
    given = {name: value for name, _, value in parts}
    return make_section(section, {**given, **values}, f"{command}: ", prefix)


def runs_of_sources(sources: Sequence[str]) -> list[str]:
    """Return the sources, with the runs of each folder of several run seeds in its place."""
    from germline.record.run_paths import is_seed_study, runs_of

    return [
        str(run)
        for source in sources
        for run in (runs_of(Path(source)) if is_seed_study(Path(source)) else [source])
    ]


def task_of_sources(
    command: str, sources: Sequence[str], task: str | None, settings: Sequence[str]
) -> "TaskConfig":
    """Return the task that is given, or that of the first run, with settings; warn of others."""
    from germline.config import load_config
    from germline.config.loader import read_task
    from germline.record import RunDirectory
    from germline.record.run_paths import check_no_missing_run
    from germline.types import GermlineError

    overrides = [setting for setting in settings if setting.startswith("task.")]
    if task is not None:
        return load_config({"task": read_task(task)}, overrides).task
    check_no_missing_run(Path(sources[0]))
    runs = [RunDirectory.open(Path(one)) for one in sources if (Path(one) / "run.json").exists()]
    if not runs:
        raise GermlineError(
            f"{command}: {sources[0]} is not a run directory, so a task is needed: --task countdown"
        )
    title = runs[0].config.task.title
    for run in runs:
        if run.config.task.title != title:
            print_stderr(
                f"{command}: {run.path} was trained on {run.config.task.title}; here it is scored "
                f"on {title}, the task of {runs[0].path} (--task names another)"
            )
    return load_config(runs[0].config, overrides).task


def examples_epilog(lines: Sequence[str]) -> str:
    """Return the examples that follow the help of a command, one per line."""
    # The backspace makes click keep the line breaks.
    return "\b\nExamples:\n" + "".join(f"  {line}\n" for line in lines)
