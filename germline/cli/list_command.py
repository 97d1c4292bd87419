"""The command `germline list`: list names for a config, settings, shipped configs, and runs."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli import shell_completion
from germline.cli.output import AsJson, print_json, print_stderr, print_table, score_values

if TYPE_CHECKING:
    from germline.record.list_runs import RunSummary, SeedStudySummary, UnreadableRun
    from germline.types import HeldOutScore

PLACES = {
    "tasks": "task",
    "spaces": "space",
    "methods": "method",
    "strategies": "strategy",
    "optimizers": "strategy.optimizer",
    "shaping": "shaping",
    "rewards": "reward",
    "scorers": "task.scorers.NAME",
    "engines": "engine",
}
"""Kind of component -> the setting that selects one."""

WHAT = (*PLACES, "environments", "configs", "settings", "runs")

LIST_EXAMPLES = (
    "germline list tasks",
    "germline list settings | grep sigma",
    "germline list runs",
    "germline list runs experiments/march",
)

LONGEST_SUMMARY = 100
SENTENCE_END = re.compile(r"(?<=\.)(?<!et al\.) (?=[A-Z0-9])")

Rows = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Column headings, and the rows under them."""


def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help=f"One of {', '.join(WHAT)}.",
            autocompletion=lambda incomplete: [
                word for word in WHAT if word.startswith(incomplete)
            ],
        ),
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER",
            help="With runs: the folder of the run directories; default: runs.",
            autocompletion=shell_completion.complete_folders,
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
        _list_runs(folder or Path("runs"), as_json=as_json)
        return
    columns, rows = OTHERS.get(what, lambda: _names(what))()
    if as_json:
        names = ("name", *columns[1:])
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    if what == "configs":  # their comments are paragraphs
        rows = [(name, _first_sentence(text)) for name, text in rows]
    if rows:
        print_table(columns, rows)
    else:
        print_stderr(f"no {what} found")


def _list_runs(folder: Path, *, as_json: bool) -> None:
    from germline.record.list_runs import SeedStudySummary, UnreadableRun, list_runs

    runs = list_runs(folder)
    if as_json:
        print_json([_run_values(run) for run in runs])
        return
    for run in runs:
        for one in run.runs if isinstance(run, SeedStudySummary) else [run]:
            if isinstance(one, UnreadableRun):
                print_stderr(one.reason, "red")
    columns = ("run", "task", "model", "done", "held-out", "state", "age")
    if runs:
        print_table(columns, [_run(run) for run in runs])
    else:
        print_stderr("no runs found")


def _run_values(run: "RunSummary | SeedStudySummary | UnreadableRun") -> dict[str, object]:
    from germline.record.list_runs import SeedStudySummary, UnreadableRun

    if isinstance(run, UnreadableRun):
        return {"run": run.path, "state": run.state, "reason": run.reason}
    if isinstance(run, SeedStudySummary):
        runs = [_run_values(one) for one in run.runs]
        return {"run": run.path, "state": run.state, "seeds": run.seeds, "runs": runs}
    scores = {"start": run.start, "newest": run.newest, "best": run.best}
    return {
        "run": run.path,
        "state": run.shown_state,
        "task": run.task,
        "model": run.model,
        "done": run.done,
        "generations": run.total,
        "held_out": {name: one and score_values(one) for name, one in scores.items()},
        "age_s": run.age_s,
    }


def _names(what: str) -> Rows:
    from germline import registry
    from germline.config.overrides import group_at
    from germline.config.reference import list_kinds

    setting = PLACES[what]
    meanings = list_kinds(setting)
    group = group_at(setting.split("."))
    rows = []
    for name, entry in registry.entries(group).items():
        package = registry.package_of(entry)
        mark = f"(plugin {package.name}) " if package else ""
        if not (meaning := meanings.get(name, "")):  # of a reward
            described = registry.implementation(group, name).grade.__doc__ or ""
            meaning = described.strip().partition("\n")[0]
        rows.append((name, mark + meaning))
    for package_name, why in registry.load_plugins().items():
        print_stderr(f"the plugin {package_name} cannot be imported: {why}", "red")
    return (group, "meaning"), rows


def _configs() -> Rows:
    from germline.config.config_files import config_summary, preset_configs

    return ("config", "meaning"), [
        (name, config_summary(path)) for name, path in preset_configs().items()
    ]


def _first_sentence(text: str) -> str:
    from germline.report.text_format import one_line_excerpt

    return one_line_excerpt(SENTENCE_END.split(text)[0], LONGEST_SUMMARY)


def _settings() -> Rows:
    from germline.config.reference import override_names

    rows = []
    for entry in override_names(with_chosen=True):
        setting = entry.setting
        where = f" (of {', '.join(entry.kinds)})" if entry.kinds else ""
        accepts = setting.accepts.replace("`", "")
        rows.append((entry.name, setting.default, f"{setting.meaning}{where} [{accepts}]".strip()))
    return ("setting", "default", "meaning"), rows


def _environments() -> Rows:
    from germline import registry
    from germline.config import EpisodeSettings

    columns, rows = _names("tasks")
    episodic = registry.sections("task")
    return columns, [row for row in rows if issubclass(episodic[row[0]], EpisodeSettings)]


OTHERS: dict[str, Callable[[], Rows]] = {
    "configs": _configs,
    "environments": _environments,
    "settings": _settings,
}


def _run(run: "RunSummary | SeedStudySummary | UnreadableRun") -> tuple[str, ...]:
    from germline.record.list_runs import SeedStudySummary, UnreadableRun

    if isinstance(run, UnreadableRun):
        return str(run.path), "-", "-", "-", "-", run.state, "-"
    if isinstance(run, SeedStudySummary):
        return _seed_study(run)
    done = f"{run.done}/{run.total}"
    scores = _scores(run.start, run.newest, run.best)
    return str(run.path), run.task, run.model, done, scores, run.shown_state, _age(run.age_s)


def _seed_study(study: "SeedStudySummary") -> tuple[str, ...]:
    """Return the row of a folder of several run seeds; its scores are means over those that count.

    Before any seed has a score after training, it is the mean of their first scores.
    """
    from statistics import fmean

    from germline.record.seed_study import counted_seeds
    from germline.report.text_format import number

    runs, done = study.readable, f"{study.finished}/{study.seeds} seeds"
    if not runs:
        return str(study.path), "-", "-", done, "-", study.state, "-"
    ended = [run.has_ended for run in runs]
    counted = counted_seeds(ended, [run.newest.generation if run.newest else 0 for run in runs])
    scores = [(runs[place].start, runs[place].newest) for place in counted]
    ends = [[start.mean, newest.mean] for start, newest in scores if start and newest]
    ends = ends or [[run.start.mean] for run in runs if run.start]
    means = " -> ".join(number(fmean(means)) for means in zip(*ends, strict=True)) or "-"
    first = runs[0]
    return str(study.path), first.task, first.model, done, means, study.state, _age(study.age_s)


def _scores(
    start: "HeldOutScore | None", newest: "HeldOutScore | None", best: "HeldOutScore | None"
) -> str:
    """Format the first and the latest score, and the best one if it is neither of them."""
    from germline.report.text_format import number

    if newest is None:
        return "-"
    if start is None or start.generation == newest.generation:
        return number(newest.mean)
    ends = f"{number(start.mean)} -> {number(newest.mean)}"
    if best is None or best.mean in (start.mean, newest.mean):
        return ends
    return f"{ends}, best {number(best.mean)} ({best.generation})"


def _age(seconds: float) -> str:
    """Format an age in its largest unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
