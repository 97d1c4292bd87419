"""The command `germline list`: list names for a config, settings, shipped configs, and runs."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from germline.cli.output import AsJson, print_json, print_stderr, print_table, score_values

if TYPE_CHECKING:
    from germline.report.run_facts import RunFacts, UnreadableRun

GROUPS = {
    "tasks": "task",
    "environments": "task",
    "spaces": "space",
    "methods": "method",
    "strategies": "strategy",
    "optimizers": "optimizer",
    "shaping": "shaping",
    "rewards": "reward",
    "scorers": "scorer",
    "engines": "engine",
}
"""Kind of component -> its group in the registry."""

WHAT = (*GROUPS, "configs", "settings", "runs")

LIST_EXAMPLES = (
    "germline list tasks",
    "germline list settings | grep sigma",
    "germline list runs",
    "germline list runs experiments/march",
)

LONGEST_SUMMARY = 100

Rows = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Column headings, and the rows under them."""


def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help=f"One of {', '.join(WHAT)}.",
        ),
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER",
            help="With runs: the folder of the run directories; default: runs.",
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List names for a config, settings, shipped configs, or runs.

    Names that installed plugins add are included. In a pipe, each row is a line and its columns are
    separated by tabs; settings and runs have a first line with headings. The comments of the
    shipped configs are shortened; --json prints the whole of them.

    A run is stopped if it has generations left and no process trains it: its files do not tell
    whether it was interrupted or ended with an error. Resume it, which shows an error again.
    """
    if what not in WHAT:
        raise typer.BadParameter(f"{what!r} is not one of {', '.join(WHAT)}")
    if what == "runs":
        _list_runs(folder or Path("runs"), as_json=as_json)
        return
    if folder:
        raise typer.BadParameter(f"{str(folder)!r}: only `list runs` takes a folder")
    columns, rows = {"configs": _configs, "settings": _settings}.get(what, lambda: _names(what))()
    if as_json:
        names = ("name", *columns[1:])
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    if what == "configs":  # their comments are paragraphs
        from germline.report.text_format import one_line_excerpt

        rows = [(name, one_line_excerpt(text, LONGEST_SUMMARY)) for name, text in rows]
    if rows:
        print_table(columns, rows)
    else:
        print_stderr(f"no {what} found")


def _names(what: str) -> Rows:
    from germline import registry
    from germline.config import EpisodeSettings
    from germline.config.reference import meaning_of

    group, rows = GROUPS[what], []
    for name, entry in registry.entries(group).items():
        if what == "environments" and not issubclass(entry.registered, EpisodeSettings):
            continue
        package = registry.package_of(entry.registered)
        mark = f"(plugin {package.name}) " if package else ""
        is_reward = group == "reward"
        described = registry.implementation(group, name).grade if is_reward else entry.registered
        rows.append((name, mark + meaning_of(described)))
    for package_name, why in registry.load_plugins().items():
        print_stderr(f"the plugin {package_name} cannot be imported: {why}", "red")
    return (group, "meaning"), rows


def _configs() -> Rows:
    from germline.config.config_files import config_summary, preset_configs

    return ("config", "meaning"), [
        (name, config_summary(path)) for name, path in preset_configs().items()
    ]


def _settings() -> Rows:
    from germline.config.reference import override_names

    rows = []
    for entry in override_names(with_chosen=True):
        setting = entry.setting
        where = f" (of {', '.join(entry.kinds)})" if entry.kinds else ""
        accepts = setting.accepts.replace("`", "")
        rows.append((entry.name, setting.default, f"{setting.meaning}{where} [{accepts}]".strip()))
    return ("setting", "default", "meaning"), rows


def _list_runs(folder: Path, *, as_json: bool) -> None:
    from germline.report.run_facts import UnreadableRun, list_runs

    runs = list_runs(folder)
    if as_json:
        print_json([_run_values(run) for run in runs])
        return
    for run in runs:
        if isinstance(run, UnreadableRun):
            print_stderr(run.reason, "red")
    if runs:
        columns = ("run", "task", "done", "held-out", "state")
        print_table(columns, [_run_cells(_run_values(run)) for run in runs])
    else:
        print_stderr("no runs found")


def _run_values(run: "RunFacts | UnreadableRun") -> dict[str, Any]:
    from germline.record.run_paths import written_at
    from germline.report.run_facts import UnreadableRun

    if isinstance(run, UnreadableRun):
        return {"run": run.path, "state": run.state, "reason": run.reason}
    first, last = (run.scores[0], run.scores[-1]) if run.scores else (None, None)
    start = None if first is None or first.generation else first
    scores = {"start": start, "newest": last, "best": run.best}
    engine = run.config.engine
    return {
        "run": run.path,
        "state": run.shown_state,
        "task": run.config.task.title,
        "model": engine.kind if engine.has_own_model else run.config.model,
        "done": run.done,
        "generations": run.config.generations,
        "held_out": {name: one and score_values(one) for name, one in scores.items()},
        "age_s": max(0.0, time.time() - written_at(run.path)),
    }


def _run_cells(run: dict[str, Any]) -> tuple[str, ...]:
    from germline.report.text_format import number

    if "reason" in run:
        return str(run["run"]), "-", "-", "-", run["state"]
    ends = {name: score and score["mean"] for name, score in run["held_out"].items()}
    shown = [f"{name} {number(mean)}" for name, mean in ends.items() if mean is not None]
    done = f"{run['done']}/{run['generations']}"
    return str(run["run"]), run["task"], done, ", ".join(shown) or "-", run["state"]
