"""Arguments that several commands share, and the examples under their help."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from germline.cli import shell_completion

if TYPE_CHECKING:
    from germline.config import TaskConfig

AnySection = TypeVar("AnySection")

Source = Annotated[
    str,
    typer.Argument(
        metavar="RUN|MODEL",
        help="A run directory, a model folder, a Hugging Face id, or nano.",
        autocompletion=shell_completion.complete_models,
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
        autocompletion=shell_completion.complete_configs,
    ),
]

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE|FILE",
        help="Settings, or YAML files of settings, that override the config, in this order.",
        autocompletion=shell_completion.complete_settings,
    ),
]

Run = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="The run directory.", autocompletion=shell_completion.complete_runs
    ),
]

Generation = Annotated[
    str | None,
    typer.Option(
        "--generation",
        "-g",
        metavar="GENERATION",
        help="The weights of a run after this generation: a number, -1 for the start, or best "
        "(highest held-out score). Default: the newest.",
    ),
]

Generations = Annotated[
    list[str] | None,
    typer.Option(
        "--generation",
        "-g",
        metavar="GENERATION",
        help="The weights of every run after this generation, once for each: a number, -1 for the "
        "start, or best (highest held-out score). Default: the newest.",
    ),
]

TaskOption = Annotated[
    str | None,
    typer.Option(
        metavar="TASK",
        help="Short name, file or config of the task; default: the first run's own.",
        autocompletion=shell_completion.complete_tasks,
    ),
]

Split = Annotated[Literal["train", "test"], typer.Option(help="Split of the examples.")]

Limit = Annotated[
    int | None, typer.Option(min=1, help="Use only the first N examples; default: all.")
]


def _apply_force(ctx: Any, *, value: bool) -> bool:
    """Turn the refusals of `germline.run.preflight` into warnings until the command ends."""
    if value and not ctx.resilient_parsing:  # a shell that completes a word parses resiliently
        from germline.run.preflight import refusals_as_warnings

        ctx.with_resource(refusals_as_warnings())
    return value


Force = Annotated[
    bool,
    typer.Option(
        "--force",
        callback=lambda ctx, value: _apply_force(ctx, value=value),
        help="Warn where more processes, threads or members, or a larger model, are asked for than "
        "this machine is expected to hold, instead of refusing.",
    ),
]
"""The option of commands that train; its callback does all there is to do."""


def generation_of(
    command: str, text: str | None, option: str = "--generation"
) -> int | Literal["best"] | None:
    """Return the generation that an option of a command names: a number, or `best`.

    Raises:
        GermlineError: the text is neither; None and "" mean that the option was not given.
    """
    if not text:
        return None
    if text == "best":
        return "best"
    try:
        return int(text)
    except ValueError:
        from germline.types import GermlineError

        raise GermlineError(
            f"{command}: {option}={text} is neither a number nor best: use {option} best, the "
            f"number of a generation from 0 on, or {option} -1, the start"
        ) from None


def read_section(
    command: str, section: type[AnySection], settings: Sequence[str], prefix: str, **values: object
) -> AnySection:
    """Return a section whose settings are given as words, such as `judge.model=large`.

    A template may be given as the name of a file that holds it.

    Args:
        command: for errors.
        section: its class.
        settings: the words.
        prefix: how each of them starts, such as `judge.`.
        values: further settings.

    Raises:
        GermlineError: a setting does not exist, or its value is impossible.
    """
    from pydantic import ValidationError

    from germline.types import GermlineError

    given: dict[str, object] = {}
    for setting in settings:
        name, _, text = setting.removeprefix(prefix).partition("=")
        is_file = name == "template" and "{" not in text and Path(text).suffix
        try:
            given[name] = Path(text).read_text(encoding="utf-8") if is_file else text
        except (OSError, UnicodeDecodeError) as error:
            raise GermlineError(f"{command}: {setting} cannot be read: {error}") from None
    try:
        return section(**{**given, **values})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = first["loc"][0] if first["loc"] else ""
        why = first["msg"].removeprefix("Value error, ")
        fields: Any = section
        known = ", ".join(f"{prefix}{name}" for name in fields.model_fields if name not in values)
        raise GermlineError(
            f"{command}: {prefix}{place}: {why}; the settings are {known}"
        ) from None


def check_prefixes(
    settings: Sequence[str], prefixes: tuple[str, ...], command: str, purpose: str
) -> None:
    """Check that settings are among those that a command reads: those that start with a prefix.

    Raises:
        GermlineError: a setting has no effect there; it says what the settings are of.
    """
    from germline.types import GermlineError

    for setting in settings:
        if not setting.startswith(prefixes):
            raise GermlineError(
                f"{command}: {setting} has no effect here; settings of {purpose} start with "
                f"{', '.join(prefixes)}"
            )


def runs_of_source(source: str) -> list[str]:
    """Return the runs in a folder of several run seeds; any other source alone, as it is given."""
    from germline.record.seed_study import is_seed_study, runs_of

    path = Path(source)
    return [str(run) for run in runs_of(path)] if is_seed_study(path) else [source]


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell sources from settings, which have an equals sign and are no folders."""
    settings = [word for word in words if "=" in word and not Path(word).exists()]
    return [word for word in words if word not in settings], settings


def task_section(
    command: str, source: str, task: str | None, overrides: Sequence[str]
) -> "TaskConfig | None":
    """Return the task that is given, or the run's task with overrides; None: the run's task.

    Raises:
        GermlineError: there is neither a task nor a run.
    """
    from germline.config import load_config
    from germline.config.loader import read_task
    from germline.record import RunDirectory
    from germline.record.run_paths import check_no_missing_run
    from germline.types import GermlineError

    if task is not None:
        return load_config({"task": read_task(task)}, overrides).task
    check_no_missing_run(Path(source))
    if not (Path(source) / "run.json").exists():
        from germline.run.model_card import task_of_card  # after the cheap checks: it is slow

        missing = "" if Path(source).exists() else f" (there is no folder {source!r} here)"
        raise GermlineError(
            f"{command}: {source} is not a run directory, so a task is needed: "
            f"--task {shlex.quote(task_of_card(Path(source)) or 'countdown')}{missing}"
        )
    if not overrides:
        return None
    return load_config(RunDirectory.open(Path(source)).config, overrides).task


def examples_epilog(lines: Sequence[str]) -> str:
    """Return the examples that follow the help of a command, one per line."""
    # The backspace makes click keep the line breaks.
    return "\b\nExamples:\n" + "".join(f"  {line}\n" for line in lines)
