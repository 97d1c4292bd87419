"""The verb that shows what there is: `germline list`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli import completion

if TYPE_CHECKING:
    from germline.record.list_runs import RunSummary, UnreadableRun
    from germline.types import HeldOutScore

PLACES = {
    "tasks": "task",
    "spaces": "space",
    "methods": "method",
    "strategies": "strategy",
    "optimizers": "strategy.optimizer",
    "shaping": "shaping",
    "rewards": "reward",
    "engines": "engine",
}
"""What is listed -> the setting that chooses from it."""

WHAT = (*PLACES, "configs", "settings", "runs")

LIST_EXAMPLES = (
    "germline list tasks",
    "germline list settings | grep sigma",
    "germline list runs",
    "germline list runs experiments/march",
)

Rows = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Column headings, and the rows under them."""


def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help=f"One of {', '.join(WHAT)}.",
            autocompletion=lambda incomplete: [one for one in WHAT if one.startswith(incomplete)],
        ),
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER",
            help="With runs: where they are; default: runs.",
            autocompletion=completion.complete_folders,
        ),
    ] = None,
) -> None:
    """Show what there is: names for a config, settings, shipped configs, runs.

    Names that installed packages add are included. In a pipe, each row is a line of columns between
    tabs, without headings.
    """
    from germline.registry import did_you_mean
    from germline.types import GermlineError

    if what not in WHAT:
        hint = did_you_mean(what, WHAT)
        raise GermlineError(f"list: {what!r} is not one of {', '.join(WHAT)}{hint}")
    if folder is not None and what != "runs":
        raise GermlineError(
            f"list {what}: takes no folder (found {str(folder)!r}); only `germline list runs` does"
        )
    if what == "runs":
        columns, rows = _runs(folder or Path("runs"))
    else:
        columns, rows = OTHERS.get(what, lambda: _names(what))()

    from germline.cli import tables

    if rows:
        tables.print_table(columns, rows)
    else:
        typer.echo(f"no {what} here", err=True)


def _names(what: str) -> Rows:
    from germline import registry
    from germline.config.reference import list_kinds

    setting = PLACES[what]
    meanings = list_kinds(setting)
    group = setting.rpartition(".")[2]
    rows = []
    for name, entry in registry.entries(group).items():
        package = registry.package_of(entry)
        mark = f"(plugin {package.name}) " if package else ""
        meaning = meanings.get(name) or (entry.registered.__doc__ or "").strip().partition("\n")[0]
        rows.append((name, mark + meaning))
    for package_name, why in registry.load_plugins().items():
        typer.secho(f"the plugin {package_name} cannot be imported: {why}", fg="red", err=True)
    return (group, "meaning"), rows


def _configs() -> Rows:
    from germline.config.presets import config_summary, preset_configs

    return ("config", "meaning"), [
        (name, config_summary(path)) for name, path in preset_configs().items()
    ]


def _settings() -> Rows:
    from germline.config.reference import override_names

    rows = []
    for entry in override_names():
        setting = entry.setting
        where = f" (of {', '.join(entry.kinds)})" if entry.kinds else ""
        accepts = setting.accepts.replace("`", "")
        rows.append((entry.name, setting.default, f"{setting.meaning}{where} [{accepts}]".strip()))
    return ("setting", "default", "meaning"), rows


OTHERS: dict[str, Callable[[], Rows]] = {"configs": _configs, "settings": _settings}


def _runs(folder: Path) -> Rows:
    from germline.record.list_runs import UnreadableRun, list_runs

    columns = ("run", "task", "model", "done", "held-out", "state", "age")
    found = list_runs(folder)
    for one in found:
        if isinstance(one, UnreadableRun):
            typer.secho(one.reason, fg="red", err=True)
    return columns, [_run(one) for one in found]


def _run(one: "RunSummary | UnreadableRun") -> tuple[str, ...]:
    from germline.record.list_runs import UnreadableRun

    if isinstance(one, UnreadableRun):
        return str(one.path), "-", "-", "-", "-", "damaged", "-"
    return (
        str(one.path),
        one.task,
        one.model,
        f"{one.done}/{one.total}",
        _scores(one.start, one.newest, one.best),
        one.state,
        _age(one.age_s),
    )


def _scores(
    start: "HeldOutScore | None", newest: "HeldOutScore | None", best: "HeldOutScore | None"
) -> str:
    """Write the first and the newest score, and the best one where it is neither of them."""
    from germline.cli import text_format

    if newest is None:
        return "-"
    if start is None or start.generation == newest.generation:
        return text_format.number(newest.mean)
    ends = f"{text_format.number(start.mean)} -> {text_format.number(newest.mean)}"
    if best is None or best.mean in (start.mean, newest.mean):
        return ends
    return f"{ends}, best {text_format.number(best.mean)} ({best.generation})"


def _age(seconds: float) -> str:
    """Write an age in its largest unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
