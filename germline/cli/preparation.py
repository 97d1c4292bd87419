"""The commands before a training: `germline new` and `germline check`."""

import keyword
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli.arguments import split_words
from germline.cli.output import AsJson, print_json, print_table
from germline.errors import count_of

if TYPE_CHECKING:
    from germline.run.task_check import TaskCheckReport


NEW_EXAMPLES = (
    "germline new riddles                       # a task of your own: riddles.py",
    "germline new --model nano --task arithmetic",
    "germline new large.yaml --model Qwen/Qwen3-4B --task countdown",
    "germline new --model nano --task conciseness task.few_shot=2 --minutes 2",
)
STARTING_POINT = Path(__file__).with_name("starting_point")
FILES = {"task.txt": "{}.py", "test.txt": "test_{}.py", "config.txt": "{}.yaml"}
"""Template -> file name, for each file of a new task."""


def new(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME|KEY=VALUE",
            help="Name of a new task, which may include a folder. With --task: the file to write "
            "(default: TASK-MODEL.yaml), and settings task.*, such as the columns of its rows.",
        ),
    ] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="A folder, a GGUF file, a Hugging Face id, or nano."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="TASK", help="Short name or file of the task.")
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
    """Write a template for a custom task, or a config for a model.

    With NAME alone: NAME.py, a test of it, and a config that trains on it. All three work as
    written and are meant to be edited.

    With --model and --task: a config with the reason of every setting as a comment. Its memory is
    compared with that of this machine; with --minutes, a training of a few small generations
    measures its speed. Sigma and learning rate are auto. Of a model on the Hugging Face hub only
    config.json is read.
    """
    from germline.types import GermlineError

    names, settings = split_words("new", words, ("task.",))
    if model is not None and task is not None and len(names) <= 1:
        _write_config(model, task, settings, *map(Path, names), minutes=minutes, as_json=as_json)
    elif len(names) == 1 and not (model or task or minutes or settings):
        _write_task(Path(names[0]), as_json=as_json)
    else:
        raise GermlineError(
            "new: give one NAME and nothing else for a task of your own, or --model and --task for "
            "a config"
        )


def _write_task(name: Path, *, as_json: bool) -> None:
    from germline.record.atomic_files import explain_write_errors
    from germline.types import GermlineError

    is_importable = name.name.isidentifier() and not keyword.iskeyword(name.name)
    if not is_importable or name.name in sys.stdlib_module_names:
        raise GermlineError(
            f"new: {name.name!r} cannot name a Python file that tests import; use letters, digits "
            "and _, and no name of a module of Python; for a config, give --model and --task"
        )
    files = {template: name.with_name(file.format(name.name)) for template, file in FILES.items()}
    taken = [str(file) for file in files.values() if file.exists()]
    if taken:
        raise GermlineError(
            f"new: {', '.join(taken)} already exists; choose another name, or remove it"
        )
    with explain_write_errors(name.parent):
        name.parent.mkdir(parents=True, exist_ok=True)
        for template, file in files.items():
            text = (STARTING_POINT / template).read_text(encoding="utf-8")
            file.write_text(text.replace("NAME", name.name), encoding="utf-8")
    task, test, config = map(str, files.values())
    _print_written(
        {"files": [task, test, config]},
        [f"wrote {file}" for file in files.values()],
        [f"germline check {task}", f"python -m pytest {test}", f"germline train {config}"],
        as_json=as_json,
    )


def _write_config(
    model: str,
    task: str,
    given: Sequence[str],
    out: Path | None = None,
    *,
    minutes: float | None,
    as_json: bool,
) -> None:
    from germline.config import load_config
    from germline.record.atomic_files import check_writable
    from germline.types import GermlineError

    model_name = re.sub(r"[^\w.-]+", "-", Path(model).name).strip("-").lower() or "model"
    file = out or Path(f"{Path(task).stem}-{model_name}.yaml")
    if file.exists():
        raise GermlineError(f"new: {file} already exists; choose another name")
    check_writable(file)
    settings = load_config({"model": model, "task": task}, given)

    from germline.cli.train import memory_values
    from germline.config.config_files import is_gguf, model_source
    from germline.engines.checkpoint_files import weight_files
    from germline.engines.pretrained import local_model_folder
    from germline.estimates.machine import machine_here
    from germline.estimates.recommended_config import config_text, recommend, too_large
    from germline.estimates.sizes import shape_of
    from germline.record.atomic_files import write_atomically
    from germline.report.text_format import duration
    from germline.run.dry_run import measure_time

    shape, machine = shape_of(model), machine_here(settings)
    found, seconds = recommend(model, task, shape, machine, given), None
    if minutes:
        folder = local_model_folder(model_source(model))
        if folder is None or not (is_gguf(model) or weight_files(folder)):
            raise GermlineError(
                f"new: --minutes measures a short training, and the weights of {model} are not on "
                f"this machine: `hf download {model}` gets them"
            )
        limit = 60 * minutes
        measured = measure_time(found.config, limit)
        found = recommend(
            model, task, shape, machine, given, lambda config: measured.run_s(config) <= limit
        )
        seconds = measured.run_s(found.config)
        if seconds > limit:
            raise GermlineError(
                f"new: --minutes={minutes:g} is too short: the smallest run, "
                f"{found.config.generations} generations of {found.config.strategy.population} "
                f"members x {found.config.batch_size} examples, takes {duration(seconds)} here; "
                "allow that time, or use a smaller model or a smaller task.max_new_tokens"
            )
    command = ["germline", "new", "--model", model, "--task", task, *given]
    command += ["--minutes", f"{minutes:g}"] if minutes else []
    name = shlex.quote(str(file))
    time = "" if seconds is None else f"; {duration(seconds)} for the run, by a short training"
    write_atomically(file, config_text(found, shlex.join(command), name, time).encode())
    rows = [
        {"setting": setting, "value": one.value, "reason": one.reason}
        for setting, one in found.settings.items()
    ]
    about = "" if seconds is None else f", about {duration(seconds)} on this machine"
    memory = memory_values(found.estimate)
    _print_written(
        {"file": file, "settings": rows, "memory": memory, "run_s": seconds},
        [
            f"wrote {file}: {count_of(found.config.generations, 'generations')}{about}",
            *filter(None, [too_large(found.estimate)]),
        ],
        [f"germline train {name} --dry-run", f"germline train {name}"],
        as_json=as_json,
    )


def _print_written(
    values: dict[str, object], lines: Sequence[str], following: Sequence[str], *, as_json: bool
) -> None:
    if as_json:
        print_json({**values, "next": following})
    else:
        typer.echo("\n".join([*lines, "", "Next:", *(f"  {command}" for command in following)]))


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
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings task.* and graders.*.")
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="Model whose tokenizer and chat template are used.")
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
    from germline.report.text_format import bounded_text, number

    for place, prompt in enumerate(report.prompts, start=1):
        head = f"prompt {place} of {len(report.prompts)} ({count_of(prompt.tokens, 'tokens')})"
        typer.secho(head, bold=True)
        typer.echo(bounded_text(prompt.text).rstrip("\n"))
        typer.secho(f"gold answer: {bounded_text(prompt.answer) or '-'}\n", dim=True)
    rows = []
    for row in report.findings:
        ends = (min(row.rewards), max(row.rewards)) if row.rewards else ()
        reward = " to ".join(dict.fromkeys(map(number, ends))) or "-"
        rows.append((row.tried, str(row.count), reward, row.verdict, row.remark))
    print_table(("tried", "number", "reward", "verdict", "remark"), rows)
    if report.printed is not None:
        typer.echo(f"\nThe reward printed text; it is in {report.printed}")
