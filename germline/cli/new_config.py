"""The command `germline new config`: write a config for a model and a task, with its reasons."""

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from germline.cli import completion
from germline.cli.arguments import check_prefixes
from germline.cli.json_output import AsJson, print_json

NEW_CONFIG_EXAMPLES = (
    "germline new config --model nano --task arithmetic",
    "germline new config --model Qwen/Qwen3-4B --task countdown --hardware 24gb",
    "germline new config --model nano --task conciseness task.few_shot=2",
    "germline new config --model nano --task multiplication --minutes 2",
)
HERE = ("embedded", "folder", "cache")
"""Where weights are that a measurement need not download."""

TASK_SETTINGS = ("task.",)
"""Prefixes of settings that have an effect here; other settings are refused."""


def new_config(
    task_settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings task.*, such as the columns of its rows; the file has them too.",
            autocompletion=completion.complete_settings,
        ),
    ] = None,
    *,
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="A folder, a GGUF file, a Hugging Face id, or nano.",
            autocompletion=completion.complete_folders,
        ),
    ],
    task: Annotated[
        str,
        typer.Option(
            metavar="TASK",
            help="Short name or file of the task.",
            autocompletion=completion.complete_tasks,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file to write; default: TASK-MODEL.yaml."),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Choose settings for another machine (laptop-8gb, t4, 24gb, 80gb), from its data "
            "sheet; default: this one.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="MINUTES",
            help="Reduce population, batch size, generations and held-out scores until the run is "
            "estimated to take at most this many minutes.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a config for a model and a task, with the reason of every setting as a comment.

    Settings are chosen to fit the machine, by the estimates of `germline doctor --config`; with
    `--minutes`, a training of two small generations corrects them where the weights are here. Sigma
    and learning rate are `auto`. Of a model on the Hugging Face hub only config.json is read.
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

    from germline.cli.estimate import estimate_values
    from germline.estimates.here import machine_here, machine_named
    from germline.estimates.local_files import model_source
    from germline.estimates.model_shape import shape_of
    from germline.estimates.recommended_config import config_text, recommend
    from germline.record.atomic_files import write_atomically
    from germline.report.text_format import duration
    from germline.run.measured_machine import measured_machine

    shape = shape_of(model)
    machine = machine_named(hardware) if hardware else machine_here(settings, shape)
    if minutes and not hardware and model_source(model, shape).found in HERE:
        usual = recommend(model, task, shape, machine, given).config
        machine = measured_machine(usual, shape, machine)
    found = recommend(model, task, shape, machine, given, minutes)
    command = ["germline", "new", "config", "--model", model, "--task", task, *given]
    command += ["--hardware", hardware] if hardware else []
    command += ["--minutes", f"{minutes:g}"] if minutes else []
    name = shlex.quote(str(file))
    write_atomically(file, config_text(found, shlex.join(command), name).encode())
    tried = f"germline train {name} --dry-run"  # which is about this machine
    if hardware:
        tried = f"germline doctor --config {name} --hardware {hardware}"
    following = [tried, f"germline train {name}"]
    if as_json:
        rows = [
            {"setting": one.setting, "value": one.value, "reason": one.reason}
            for one in found.settings
        ]
        estimate = estimate_values(found.estimate)
        print_json({"file": file, "settings": rows, "estimate": estimate, "next": following})
        return
    typer.echo(
        f"wrote {file}: {found.config.generations} generations, about "
        f"{duration(found.estimate.run_s)} on {machine.name}\n{machine.source_of_times}"
    )
    typer.echo("\nNext:\n" + "\n".join(f"  {line}" for line in following))


def _file_name(model: str) -> str:
    return re.sub(r"[^\w.-]+", "-", Path(model).name).strip("-").lower() or "model"
