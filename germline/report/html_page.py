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
from germline.record.atomic_files import explain_write_errors, write_atomically
from germline.record.metrics_rows import batch_examples
from germline.record.run_directory import installed_version
from germline.record.run_paths import is_seed_study
from germline.report import charts, comparison, text_format
from germline.report.run_facts import RunFacts, next_commands
from germline.report.text_format import bounded_text
from germline.types import GermlineError


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
    """Return the file of the page about these runs, and refuse any that is no HTML file.

    The default is `report.html` in the run directory, or in the folder of run seeds where all runs
    are in one; of other runs, `report.html` in the working directory.
    """
    if out is None:
        folders = {run.path.parent for run in runs}
        is_study = len(folders) == 1 and is_seed_study(runs[0].path.parent)
        folder = runs[0].path.parent if is_study else Path()
        return runs[0].run.report if len(runs) == 1 else folder / "report.html"
    path = Path(out)
    if path.suffix != ".html" or (path.exists() and not path.is_file()):
        raise GermlineError(f"out={path}: name the file of the page, such as report.html (--out)")
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
    groups = comparison.seed_groups(runs)
    return render_template(
        "page.html",
        title=f"{', '.join(run.name for run in runs)} · germline report",
        sections=[_section(run, at) for at, run in enumerate(runs)],
        groups=groups,
        over_seeds=charts.over_seeds(groups),
        tables=comparison.comparison_tables(runs, groups) if len(runs) > 1 else {},
        curves=charts.compared(runs) if len(runs) > 1 else [],
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


def _section(run: RunFacts, place: int) -> dict[str, Any]:
    """Return what the page shows of one run."""
    return {
        "run": run,
        "id": f"run-{place}",
        "tone": charts.COLORS[place % len(charts.COLORS)],
        "title": [*map(text_format.escape_control_characters, text_format.run_title(run.config))],
        "charts": {
            "Curves": charts.curves(run),
            "Parts of the reward": charts.parts(run),
            "Retained": charts.retained(run),
            "Signals": charts.signals(run),
        },
        "rows_each": run.config.method.generated_rows(run.config.strategy.population or 1),
        "examples": batch_examples(run.rows, run.config),
        "scores": text_format.score_lines(run.scores, run.config, run.done),
        "ensemble": run.run.ensemble(),
        "behavior": text_format.behavior_change(run.behavior) if run.behavior else "",
        "settings": _yaml(comparison.changed_settings(run.config)),
        "commands": [] if run.damage else next_commands(run.run),
        "provenance": _provenance(run),
    }


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


def _differing(runs: Sequence[RunFacts]) -> Mapping[str, Sequence[str]]:
    """Return the settings that differ, without those that every run lacks or leaves unset.

    The run seed is none of them where every run is one of several seeds: its name has it.
    """
    found = comparison.differing_settings([run.config for run in runs])
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
    for name in ("seconds", "size", "number"):
        environment.filters[name] = getattr(text_format, name)
    environment.filters |= {"setting": _value, "svg": _svg, "bounded": bounded_text}
    return environment
