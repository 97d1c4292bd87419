"""The report: one HTML page about one run, or about several side by side.

The page is self-contained: it includes its style and its charts and has no script. Its content
security policy forbids scripts and requests, in case model text gets around the escaping. This is
the only module that imports Jinja2, which escapes every value that a template inserts.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from germline.config.config_files import as_yaml
from germline.evaluation.behavior import DETECTORS
from germline.record.atomic_files import explain_write_errors, write_atomically
from germline.record.metrics_rows import batch_examples
from germline.record.run_directory import installed_version
from germline.record.seed_study import is_seed_study, seed_runs
from germline.report import charts, diff, text_format
from germline.report.comparison import SeedGroup, compared_runs, comparison_heading, seed_groups
from germline.report.run_facts import RunFacts, next_commands
from germline.report.text_format import bounded_text
from germline.types import GermlineError

MOST_ROWS = 50
"""Rows of the table of numbers; of a longer run, evenly spaced generations are shown."""

DOCTYPE = b"<!doctype html"
"""How a page begins, in lower case."""

MOST_NAMED, LONGEST_FILE_NAME = 4, 40
"""Runs, and characters of a run, in the default file name of a comparison."""


def write_report(paths: Path | str | Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Write a report about a run, or about several side by side, and return its path.

    It can be written at any time: while a run is training, it shows the progress.

    Args:
        paths: run directories.
        out: the file; default: see `page_path`.

    Raises:
        GermlineError: there is no run, one cannot be read, or `out` cannot be written.
    """
    runs = read_runs(paths)
    return write_page(runs, page_path(runs, out))


def read_runs(paths: Path | str | Sequence[Path | str]) -> list[RunFacts]:
    """Return the facts of runs, each run once."""
    given = [paths] if isinstance(paths, (Path, str)) else list(paths)
    folders = {Path(path).resolve(): Path(path) for path in given}
    if not folders:
        raise GermlineError("report: no run was named; name at least one run directory")
    return [RunFacts(folder) for folder in folders.values()]


def page_path(runs: Sequence[RunFacts], out: Path | str | None = None) -> Path:
    """Return the file of the page about these runs, and refuse to replace anything but a page.

    The default is `report.html` in the run directory, or in the folder of run seeds where these are
    all of its runs; of other runs, a file in the working directory whose name has those of the
    runs.
    """
    path = _default_path(runs) if out is None else Path(out)
    if path.exists() and not path.is_file():  # a folder, or a device, which it would replace
        raise GermlineError(f"out: {path} is no file; name the file to write (--out)")
    if path.is_file():
        start = path.read_bytes().lstrip()[: len(DOCTYPE)]
        if start and start.lower() != DOCTYPE:
            raise GermlineError(
                f"out: {path} exists and is no HTML page, so the report does not replace it; name "
                "another file (--out)"
            )
    return path


def write_page(runs: Sequence[RunFacts], path: Path) -> Path:
    """Write the page about these runs and return its path; see `page_path`."""
    page = render_page(runs)
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode("utf-8", "replace"))
    return path


def render_page(runs: Sequence[RunFacts]) -> str:
    """Return the page about these runs."""
    groups = seed_groups(runs)
    colors = _colors(runs, groups)
    return render_template(
        "page.html",
        title=f"{', '.join(run.name for run in runs)} · germline report",
        sections=[_section(run, at, colors[at]) for at, run in enumerate(runs)],
        groups=groups,
        over_seeds=charts.over_seeds(groups),
        compared=compared_runs(runs, groups),
        compared_with=comparison_heading(groups),
        curves=charts.compared(runs, colors) if len(runs) > 1 else [],
        different=_differing(runs),
    )


def render_template(name: str, **values: Any) -> str:
    """Return a page with its values, and with when and by which version it was written."""
    return (
        _environment()
        .get_template(name)
        .render(
            written=f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
            germline=installed_version("germline") or "unknown",
            **values,
        )
    )


def _section(run: RunFacts, place: int, color: int) -> dict[str, Any]:
    """Return what the page shows of one run."""
    return {
        "run": run,
        "id": f"run-{place}",
        "tone": charts.COLORS[color % len(charts.COLORS)],
        "title": [*map(text_format.escape_control_characters, text_format.run_title(run.config))],
        "charts": {
            "Curves": charts.curves(run),
            "Parts of the reward": charts.parts(run),
            "Retained": charts.retained(run),
            "Signals": charts.signals(run),
            "Prompt options": charts.options(run.rows),
        },
        "numbers": _numbers(run),
        "rows_each": run.config.method.generated_rows(run.config.strategy.population or 1),
        "examples": batch_examples(run.rows, run.config),
        "counted": text_format.counted_by(run.config),
        "ensemble": run.run.ensemble(),
        "behavior": _behavior(run),
        "settings": _yaml(diff.changed_settings(run.config)),
        "all_settings": diff.flatten_settings(run.config.model_dump(mode="json")),
        "commands": [] if run.damage else next_commands(run.run),
        "provenance": _provenance(run),
    }


def _behavior(run: RunFacts) -> dict[str, tuple[float, float]]:
    """Return the shares of held-out answers that detectors flag, at the start and now, if any."""
    if run.behavior is None:
        return {}
    start, now = run.scores[0].behavior, run.scores[-1].behavior
    shares = {name: (start.get(name, 0.0), now.get(name, 0.0)) for name in DETECTORS}
    return {name.replace("_", " "): both for name, both in shares.items() if any(both)}


def _provenance(run: RunFacts) -> dict[str, str]:
    environment = run.run.environment
    written = [row["written_at"] for row in run.rows if "written_at" in row]
    facts = {
        **{name: value or "not installed" for name, value in environment["versions"].items()},
        **{name: environment[name] for name in ("platform", "processor", "threads")},
        "written": f"{written[0]} to {written[-1]}" if written else "",
        "weights at start": run.run.base_digest,
        f"weights after {run.done}": run.entries[-1].digest if run.entries else "",
        "run directory": str(run.path),
    }
    try:
        for one in run.run.ancestors:
            facts["starts from"] = f"{one.path} after generation {one.generation}, {one.digest}"
    except GermlineError as error:  # the page of what is there helps to mend it
        facts["starts from"] = str(error)
    return {name: bounded_text(str(value), 300) for name, value in facts.items() if value != ""}


def _default_path(runs: Sequence[RunFacts]) -> Path:
    if len(runs) == 1:
        return runs[0].run.report
    given = {run.path.resolve() for run in runs}
    sources = dict.fromkeys(
        parent if is_seed_study(parent) and given.issuperset(seed_runs(parent)) else run.path
        for run in runs
        for parent in [run.path.resolve().parent]
    )
    if len(sources) == 1:
        (study,) = sources
        named = runs[0].path.parent  # relative, if the run was named so
        return (named if named.resolve() == study else study) / "report.html"
    names = [_file_name(source.resolve()) for source in sources]
    more = [f"{len(names) - MOST_NAMED}-more"] if len(names) > MOST_NAMED else []
    return Path("-".join(["report", *names[:MOST_NAMED], *more]) + ".html")


def _file_name(run: Path) -> str:
    """Return the name of a run, with that of the folder of its seeds, for a file name."""
    names = [run.parent.name, run.name] if is_seed_study(run.parent) else [run.name]
    return text_format.escape_control_characters("-".join(names))[:LONGEST_FILE_NAME]


def _colors(runs: Sequence[RunFacts], groups: Sequence[SeedGroup]) -> list[int]:
    """Return the color of each run: of its config, where several have several run seeds each."""
    if len(groups) < 2:
        return list(range(len(runs)))
    of_group = {id(run): place for place, group in enumerate(groups) for run in group.runs}
    return [of_group.get(id(run), len(groups) + place) for place, run in enumerate(runs)]


def _numbers(run: RunFacts) -> list[dict[str, Any]]:
    """Return the rows of the table of numbers: the start, and evenly spaced generations."""
    scores = {score.generation: score for score in run.scores}
    step, last = -(-len(run.rows) // MOST_ROWS), len(run.rows) - 1
    fitness = {0: None} | {
        row["generation"] + 1: row["fitness"]
        for place, row in enumerate(run.rows)
        if place % step == 0 or place == last or row["generation"] + 1 in scores
    }
    return [{"updates": n, "fitness": one, "score": scores.get(n)} for n, one in fitness.items()]


def _differing(runs: Sequence[RunFacts]) -> Mapping[str, Sequence[str]]:
    """Return the settings that differ, without those that every run lacks or leaves unset.

    The run seed is none of them where every run is one of several seeds: its name has it.
    """
    found = diff.differing_settings([run.config for run in runs])
    if all(is_seed_study(run.path.resolve().parent) for run in runs):
        found.pop("seed", None)
    return {
        name: [_value(value) for value in row]
        for name, row in found.items()
        if any(value is not None and value is not ... for value in row)
    }


def _value(value: object) -> str:
    """Format a setting as in a config."""
    if value is ...:
        return "–"
    return bounded_text(_yaml(value, flow=True).removesuffix("\n").removesuffix("\n..."), 200)


def _yaml(value: object, *, flow: bool = False) -> str:
    return as_yaml(value, allow_unicode=True, width=88, default_flow_style=flow)


def _svg(chart: charts.Chart) -> str:
    from germline.report.plots import svg  # takes half a second, and a page needs it

    return svg(chart)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = ("signed", "score", "error", "difference_error", "directions", "mean_rewards")
    for name in (*names, "kind_of_error", "seconds", "size", "number", "percent", "best_between"):
        environment.filters[name] = getattr(text_format, name)
    environment.filters |= {"setting": _value, "svg": _svg}
    return environment
