"""The report: one HTML page about one run, or about several side by side.

The page is self-contained: it includes its style and its charts and has no script. Its content
security policy forbids scripts and requests, in case model text gets around the escaping. This is
the only module that imports Jinja2, which escapes every value that a template inserts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from germline.record.atomic_files import write_atomically
from germline.record.metrics_rows import scores_by_scorer
from germline.record.run_directory import installed_version
from germline.record.seed_study import is_seed_study, seed_runs
from germline.report import (
    constraint_charts,
    curves,
    diff,
    prompt_option_charts,
    signal_charts,
    svg_charts,
    text_format,
)
from germline.report.advice import advice
from germline.report.part_charts import part_charts
from germline.report.random_reward import random_reward
from germline.report.random_start import random_start
from germline.report.run_comparison import compared_runs, compared_with, headline, seed_verdict
from germline.report.run_facts import RunFacts, bounded_text
from germline.report.score_divergence_advice import score_divergence_advice
from germline.report.seed_curves import (
    SeedGroup,
    run_tones,
    seed_charts,
    seed_groups,
    split_seeds,
)
from germline.report.suggested_commands import suggested_commands
from germline.report.svg_charts import Chart, Drawing
from germline.types import GermlineError

WIDE, NARROW = (880.0, 300.0), (360.0, 250.0)
"""Sizes of the charts, in pixels."""

MOST_ROWS = 50
"""Rows of the table of numbers; of a longer run, evenly spaced generations are shown."""


DOCTYPE = b"<!doctype html"
"""How a page begins, in lower case."""

MOST_NAMED, LONGEST_NAME = 4, 40
"""Runs, and characters of a run, in the default file name of a comparison."""


@dataclass(frozen=True)
class PageFigure:
    """A numbered chart, drawn for wide and for narrow pages."""

    number: int
    chart: Chart
    drawings: dict[str, Drawing]


@dataclass(frozen=True)
class SettingsTable:
    """The settings that differ: a column for each config with several seeds, and each other run."""

    columns: Sequence[str]
    rows: Mapping[str, Sequence[str]]


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
    """Return the facts of runs, each run once.

    Raises:
        GermlineError: there is no run, or one cannot be read.
    """
    given = [paths] if isinstance(paths, (Path, str)) else list(paths)
    folders = {Path(path).resolve(): Path(path) for path in given}
    if not folders:
        raise GermlineError("report: no run was named; name at least one run directory")
    return [RunFacts(folder) for folder in folders.values()]


def page_path(runs: Sequence[RunFacts], out: Path | str | None = None) -> Path:
    """Return the file of the page about these runs, and refuse to replace anything but a page.

    Args:
        runs: of the page.
        out: the file; default: `report.html` in the run directory, or in the folder of run seeds
            where these are all of its runs; of other runs, a file in the working directory whose
            name has those of the runs.

    Raises:
        GermlineError: `out` is a folder, or a file that is no HTML page.
    """
    path = _default_path(runs) if out is None else Path(out)
    if path.is_dir():
        raise GermlineError(f"out: {path} is a folder; name the file to write (--out)")
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
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode("utf-8", "replace"))
    return path


def render_page(runs: Sequence[RunFacts]) -> str:
    """Return the page about these runs."""
    figures = _Figures()
    groups = seed_groups(runs)
    tones = run_tones(runs, groups)
    over_seeds = figures.draw(seed_charts(groups))
    compared = figures.draw(curves.compare_runs(runs, tones)) if len(runs) > 1 else []
    sections = [
        {
            "run": run,
            "compared": compared_run,
            "random_start": random_start(run.run),
            "anchor": f"run-{place}",
            "tone": tone,
            "title": [
                text_format.escape_control_characters(line)
                for line in text_format.run_title(run.config)
            ],
            "curves": figures.draw(
                [
                    chart
                    for draw in (
                        *(curves.fitness, curves.held_out, curves.sigma, curves.step),
                        *(constraint_charts.multiplier, constraint_charts.center_cost),
                    )
                    if (chart := draw(run))
                ]
                + curves.held_out_scorers(run)
            ),
            "parts": figures.draw(part_charts(run)),
            "disagreeing": score_divergence_advice(run.config, run.path, run.scores),
            "scorers": scores_by_scorer(run.scores),
            "signals": figures.draw(
                [
                    *signal_charts.signal_charts(run.rows),
                    *signal_charts.walk_chart(run.walk, run.config.record.edge),
                ]
            ),
            "random_reward": random_reward(run.config, run.run.rollouts()),
            "advice": advice(run.rows),
            "readings": signal_charts.signal_readings(run.rows),
            "options": figures.draw(prompt_option_charts.option_charts(run.rows)),
            "time_figure": figures.next_number() if run.parts else None,
            "numbers": _numbers(run),
            "settings": _yaml(diff.changed_settings(run.config)),
            "all_settings": diff.flatten_settings(run.config.model_dump(mode="json")),
            "commands": suggested_commands(run),
        }
        for place, (run, tone, compared_run) in enumerate(
            zip(runs, tones, compared_runs(runs, groups), strict=True)
        )
    ]
    names = ", ".join(run.name for run in runs)
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=f"{names} · germline report",
            sections=sections,
            seed_groups=groups,
            headline=headline(runs, groups),
            compared_with=compared_with(groups),
            over_seeds=over_seeds,
            split_seeds=split_seeds(runs),
            seed_verdicts=[seed_verdict(group, groups[0]) for group in groups[1:]],
            compared=compared,
            different=_between(runs, groups),
            kinds_of_score=_kinds_of_score(runs),
            written=f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
            germline=installed_version("germline") or "unknown",
        )
    )


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
    return text_format.escape_control_characters("-".join(names))[:LONGEST_NAME]


class _Figures:
    """Numbers the figures of a page in order."""

    def __init__(self) -> None:
        self._count = 0

    def next_number(self) -> int:
        self._count += 1
        return self._count

    def draw(self, some: Sequence[Chart]) -> list[PageFigure]:
        sizes = {"wide": WIDE, "narrow": NARROW}
        return [
            PageFigure(
                self.next_number(),
                chart,
                {name: svg_charts.draw_chart(chart, *size) for name, size in sizes.items()},
            )
            for chart in some
        ]


def _numbers(run: RunFacts) -> list[dict[str, Any]]:
    """Return the rows of the table of numbers: the start, and evenly spaced generations."""
    scores = {score.generation: score for score in run.scores}
    step = -(-len(run.rows) // MOST_ROWS)
    last = len(run.rows) - 1
    return [{"updates": 0, "fitness": None, "score": scores.get(0)}] + [
        {
            "updates": row["generation"] + 1,
            "fitness": row["fitness"],
            "score": scores.get(row["generation"] + 1),
        }
        for place, row in enumerate(run.rows)
        if place % step == 0 or place == last or row["generation"] + 1 in scores
    ]


def _between(runs: Sequence[RunFacts], groups: Sequence[SeedGroup]) -> SettingsTable:
    """Return the settings that differ, without those that every run lacks or leaves unset."""
    grouped = {id(run): group for group in groups for run in group.runs}
    # One run of a group stands for all of it, as these differ in their seed alone.
    columns = [run for run in runs if id(run) not in grouped or run is grouped[id(run)].runs[0]]
    found = diff.differing_settings([run.config for run in columns])
    if all(id(run) in grouped for run in columns):
        found.pop("seed", None)
    elif "seed" in found:
        found["seed"] = [_seeds(grouped.get(id(run)), run) for run in columns]
    return SettingsTable(
        [grouped[id(run)].name if id(run) in grouped else run.name for run in columns],
        {
            name: [_value(value) for value in row]
            for name, row in found.items()
            if any(value is not None and value is not ... for value in row)
        },
    )


def _seeds(group: SeedGroup | None, run: RunFacts) -> list[int] | int:
    return [one.config.seed for one in group.runs] if group else run.config.seed


def _kinds_of_score(runs: Sequence[RunFacts]) -> str:
    """Say what the scores on a page with several runs are."""
    shares = {score.proportion for run in runs for score in run.scores}
    kinds = {False: "means ± standard errors", True: "shares with 95 % intervals"}
    return ", or ".join(kinds[share] for share in sorted(shares)) or kinds[False]


def _value(value: object) -> str:
    """Format a setting as in a config."""
    if value is ...:
        return "–"
    return bounded_text(_yaml(value, flow=True).removesuffix("\n").removesuffix("\n..."), 200)


def _yaml(value: object, *, flow: bool = False) -> str:
    return yaml.safe_dump(
        value, sort_keys=False, allow_unicode=True, width=88, default_flow_style=flow
    )


def _number(value: float | int | None) -> str:
    return text_format.number(None if value is None else float(value)).replace("-", "−")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": _number,
        "score": text_format.score,
        "error": text_format.error,
        "difference_error": text_format.difference_error,
        "directions": text_format.directions,
        "mean_rewards": text_format.mean_rewards,
        "kind_of_error": text_format.kind_of_error,
        "duration": text_format.duration,
        "seconds": text_format.seconds,
        "size": lambda count: text_format.size(float(count)),
        "words": curves.metric_words,
        "setting": _value,
        "short": bounded_text,
    }
    return environment
