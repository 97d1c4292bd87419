"""The command `germline new config`: write a config for a model and a task, with its reasons."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli import shell_completion
from germline.cli.arguments import check_prefixes
from germline.cli.json_output import AsJson, print_json

if TYPE_CHECKING:
    from germline.config import Config
    from germline.run.measured_time import MeasuredTime

NEW_CONFIG_EXAMPLES = (
    "germline new config --model nano --task arithmetic",
    "germline new config --model Qwen/Qwen3-4B --task countdown",
    "germline new config --model nano --task conciseness task.few_shot=2",
    "germline new config --model nano --task multiplication --minutes 2",
)
TASK_SETTINGS = ("task.",)
"""Prefixes of settings that have an effect here; other settings are refused."""


def new_config(
    task_settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings task.*, such as the columns of its rows; the file has them too.",
            autocompletion=shell_completion.complete_settings,
        ),
    ] = None,
    *,
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="A folder, a GGUF file, a Hugging Face id, or nano.",
            autocompletion=shell_completion.complete_folders,
        ),
    ],
    task: Annotated[
        str,
        typer.Option(
            metavar="TASK",
            help="Short name or file of the task.",
            autocompletion=shell_completion.complete_tasks,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file to write; default: TASK-MODEL.yaml."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="MINUTES",
            help="Reduce population, batch size, generations and held-out scores until the run "
            "takes at most this many minutes, by a short training on this machine.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a config for a model and a task, with the reason of every setting as a comment.

    Settings are chosen to fit the memory of this machine; with `--minutes`, a training of a few
    small generations measures its speed. Sigma and learning rate are `auto`. Of a model on the
    Hugging Face hub only config.json is read.
    """
    from germline.config import load_config
    from germline.record.atomic_files import check_writable
    from germline.types import GermlineError

    given = task_settings or []
    check_prefixes(given, TASK_SETTINGS, "new config", "a task")
    file = out or Path(f"{Path(task).stem}-{_file_name(model)}.yaml")
    if file.exists():
        raise GermlineError(f"new config: {file} already exists; choose another name (--out)")
    check_writable(file)
    settings = load_config({"model": model, "task": task}, given)

    from germline.cli.dry_run import memory_values
    from germline.estimates.machine import machine_here
    from germline.estimates.model_shape import shape_of
    from germline.estimates.recommended_config import config_text, recommend
    from germline.record.atomic_files import write_atomically
    from germline.report.text_format import duration

    shape, machine = shape_of(model), machine_here(settings)
    found = recommend(model, task, shape, machine, given)
    seconds = None
    if minutes:
        measured = _measured(found.config)
        limit = 60 * minutes
        found = recommend(
            model, task, shape, machine, given, lambda config: measured.run_s(config) <= limit
        )
        seconds = measured.run_s(found.config)
        if seconds > limit:
            raise GermlineError(
                f"new config: --minutes={minutes:g} is too short: the smallest run, "
                f"{found.config.generations} generations of {found.config.strategy.population} "
                f"members x {found.config.batch_size} examples, takes {duration(seconds)} here; "
                "allow that time, or use a smaller model or a smaller task.max_new_tokens"
            )
    command = ["germline", "new", "config", "--model", model, "--task", task, *given]
    command += ["--minutes", f"{minutes:g}"] if minutes else []
    name = shlex.quote(str(file))
    time = "" if seconds is None else f"; {duration(seconds)} for the run, by a short training"
    write_atomically(file, config_text(found, shlex.join(command), name, time).encode())
    following = [f"germline train {name} --dry-run", f"germline train {name}"]
    if as_json:
        rows = [
            {"setting": setting, "value": choice.value, "reason": choice.reason}
            for setting, choice in found.settings.items()
        ]
        memory = memory_values(found.estimate)
        print_json(
            {"file": file, "settings": rows, "memory": memory, "run_s": seconds, "next": following}
        )
        return
    about = "" if seconds is None else f", about {duration(seconds)} on this machine"
    typer.echo(f"wrote {file}: {found.config.generations} generations{about}")
    typer.echo("\nNext:\n" + "\n".join(f"  {line}" for line in following))


def _measured(config: "Config") -> "MeasuredTime":
    """Measure the time of a config whose weights are on this machine.

    Raises:
        GermlineError: they are not.
    """
    from germline.estimates.model_shape import local_weight_bytes
    from germline.run.measured_time import measure_time
    from germline.types import GermlineError

    if local_weight_bytes(config.model) is None:
        raise GermlineError(
            f"new config: --minutes measures a short training, and the weights of {config.model} "
            f"are not on this machine: `hf download {config.model}` gets them"
        )
    return measure_time(config)


def _file_name(model: str) -> str:
    return re.sub(r"[^\w.-]+", "-", Path(model).name).strip("-").lower() or "model"
