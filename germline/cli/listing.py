"""The verb that shows what there is: `germline list`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli import completing

if TYPE_CHECKING:
    from germline.record.overview import Summary, Unreadable
    from germline.types import Score

PLACES = {
    "tasks": "task",
    "spaces": "space",
    "methods": "method",
    "strategies": "strategy",
    "optimizers": "strategy.optimizer",
    "shaping": "shaping",
    "engines": "engine",
}
"""Room -> the setting that chooses from it."""

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
            autocompletion=completing.folders,
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
        tables.show(columns, rows)
    else:
        typer.echo(f"no {what} here", err=True)


def _names(room: str) -> Rows:
    from germline.config.catalogue import kinds

    known = kinds(PLACES[room])
    rows = [*known.items(), *((name, _meaning(room, name)) for name in _plugins(room, known))]
    return (PLACES[room].rpartition(".")[2], "meaning"), rows


def _plugins(room: str, known: dict[str, str]) -> list[str]:
    from germline.registry import names

    return [name for name in names(room, {}) if name not in known]


def _meaning(room: str, name: str) -> str:
    """Say what a plugin's name stands for, in the first line of its own docstring."""
    from germline.registry import resolve

    try:
        documentation = resolve(room, {}, name).__doc__ or ""
    except Exception as error:  # noqa: BLE001 - a plugin is somebody else's code
        return f"(plugin) cannot be loaded: {type(error).__name__}: {error}"
    return f"(plugin) {documentation.strip().partition(chr(10))[0]}"


def _configs() -> Rows:
    from germline.config.shipped import shipped, summary

    return ("config", "meaning"), [(name, summary(path)) for name, path in shipped().items()]


def _settings() -> Rows:
    from germline.config.catalogue import entries

    rows = []
    for entry in entries():
        setting = entry.setting
        where = f" (of {', '.join(entry.kinds)})" if entry.kinds else ""
        accepts = setting.accepts.replace("`", "")
        rows.append((entry.name, setting.default, f"{setting.meaning}{where} [{accepts}]".strip()))
    return ("setting", "default", "meaning"), rows


OTHERS: dict[str, Callable[[], Rows]] = {"configs": _configs, "settings": _settings}


def _runs(folder: Path) -> Rows:
    from germline.record.overview import Unreadable, overview

    columns = ("run", "task", "model", "done", "held-out", "state", "age")
    found = overview(folder)
    for one in found:
        if isinstance(one, Unreadable):
            typer.secho(one.reason, fg="red", err=True)
    return columns, [_run(one) for one in found]


def _run(one: "Summary | Unreadable") -> tuple[str, ...]:
    from germline.record.overview import Unreadable

    if isinstance(one, Unreadable):
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


def _scores(start: "Score | None", newest: "Score | None", best: "Score | None") -> str:
    """Write the first and the newest score, and the best one where it is neither of them."""
    from germline.cli import wording

    if newest is None:
        return "-"
    if start is None or start.generation == newest.generation:
        return wording.number(newest.mean)
    ends = f"{wording.number(start.mean)} -> {wording.number(newest.mean)}"
    if best is None or best.mean in (start.mean, newest.mean):
        return ends
    return f"{ends}, best {wording.number(best.mean)} ({best.generation})"


def _age(seconds: float) -> str:
    """Write an age in its largest unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
