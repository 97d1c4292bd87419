"""Several run seeds of one config in a comparison: mean, range and interval of their scores."""

import itertools
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from germline.evaluation.seed_statistics import SeedStatistics, seed_statistics
from germline.record.seed_study import counted_seeds, folder_to_resume, is_seed_study
from germline.report.curves import metric_words, run_style
from germline.report.diff import differing_settings, flatten_settings
from germline.report.run_facts import RunFacts
from germline.report.svg_charts import Band, Chart, Curve, Mark
from germline.report.text_format import number

FEWEST_SEEDS, FEWEST_CONFIGS = 2, 2

OF_NO_SCORE = re.compile(r"seed|held_out\.patience|(record|graders|fleet)\b.*")
"""Settings that runs of one config may differ in: the run seed, and what no held-out score tells.

`held_out.patience` says when a run stops, and seeds that it stops have different lengths anyway.
"""


@dataclass(frozen=True)
class SeedGroup:
    """Runs of a comparison that differ in their run seed alone.

    Attributes:
        name: of the folder of its seeds, or else of the first of its runs.
        runs: one for each seed.
        counted: those of them whose scores are averaged, as `counted_seeds` says.
        start: held-out score of the base model, over the counted seeds.
        best: best score of each run, over the counted seeds.
        end: newest score of each run, over the counted seeds.
    """

    name: str
    runs: Sequence[RunFacts]
    counted: Sequence[RunFacts]
    metric: str
    start: SeedStatistics
    best: SeedStatistics
    end: SeedStatistics

    @property
    def left_out(self) -> str:
        """A sentence that names the seeds which do not count; empty if all do."""
        seeds = [str(run.config.seed) for run in self.runs if run not in self.counted]
        if not seeds:
            return ""
        return (
            f"Seeds of {self.name} that do not count, as their training has not ended: "
            f"{', '.join(seeds)} (germline resume continues a run)."
        )


def seed_groups(runs: Sequence[RunFacts]) -> list[SeedGroup]:
    """Group runs whose settings differ in the seed alone, or besides it in `OF_NO_SCORE`.

    Groups of one seed, and groups without a score after training, are left out. Of two
    runs of the same seed, which have the same bits, the later one counts.
    """
    groups: dict[str, dict[int, RunFacts]] = {}
    for run in runs:
        settings = flatten_settings(run.config.model_dump(mode="json")).items()
        scored = [one for one in settings if not OF_NO_SCORE.fullmatch(one[0])]
        if run.scores and not run.ancestors:
            by_seed = groups.setdefault(repr(sorted(scored, key=str)), {})
            by_seed[run.config.seed] = run
    several = [[*one.values()] for one in groups.values() if len(one) >= FEWEST_SEEDS]
    return [_group(runs, counted) for runs in several if (counted := _counted(runs))]


def split_seeds(runs: Sequence[RunFacts]) -> list[str]:
    """Name the folders whose seeds have other settings than each other, so they are no group."""
    folders: dict[Path, list[RunFacts]] = {}
    for run in runs:
        if is_seed_study(folder := folder_to_resume(run.path)):
            folders.setdefault(folder, []).append(run)
    return [
        sentence for folder, seeds in folders.items() if (sentence := _split_seed(folder, seeds))
    ]


def _split_seed(folder: Path, runs: Sequence[RunFacts]) -> str:
    found = {
        name: list(dict.fromkeys(map(repr, values)))
        for name, values in differing_settings([run.config for run in runs]).items()
        if not OF_NO_SCORE.fullmatch(name)
    }
    if not found:
        return ""
    values = "; ".join(f"{name} is {' or '.join(values)}" for name, values in found.items())
    sentence = f"Seeds in {folder} do not have the same settings, so they are grouped by them"
    if [*found] != ["generations"]:
        return f"{sentence}: {values}."
    most = max(run.config.generations for run in runs)
    command = f"germline resume {shlex.quote(str(folder))} generations={most}"
    return f"{sentence}: {values}. {command} trains all of them on."


def _counted(runs: Sequence[RunFacts]) -> list[RunFacts]:
    ended = [run.has_ended for run in runs]
    places = counted_seeds(ended, [run.scores[-1].generation for run in runs])
    return [runs[place] for place in places]


def _group(runs: Sequence[RunFacts], counted: Sequence[RunFacts]) -> SeedGroup:
    metric = metric_words(runs[0].metric)
    folders = {run.name.rpartition("/")[0] for run in runs}
    name = (folders.pop() if len(folders) == 1 else "") or runs[0].name
    bests = [run.best.mean for run in counted if run.best]
    return SeedGroup(
        name=name,
        runs=runs,
        counted=counted,
        metric=metric,
        start=seed_statistics([run.scores[0].mean for run in counted]),
        best=seed_statistics(bests),
        end=seed_statistics([run.scores[-1].mean for run in counted]),
    )


def run_tones(runs: Sequence[RunFacts], groups: Sequence[SeedGroup]) -> list[str]:
    """Return the CSS classes of the color of each run.

    Where several configs have several run seeds each, a color stands for a config in every chart;
    else for a run.
    """
    if len(groups) < FEWEST_CONFIGS:
        return [run_style(place) for place in range(len(runs))]
    orders = {id(run): order for order, group in enumerate(groups) for run in group.runs}
    others = itertools.count(len(groups))
    return [run_style(orders[id(run)] if id(run) in orders else next(others)) for run in runs]


def seed_charts(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Draw the held-out scores of configs over their seeds: one chart for each metric.

    All configs of a metric share one chart, so that they share its axes.
    """
    alone = len(groups) < FEWEST_CONFIGS
    tones = ["mean" if alone else run_style(order) for order in range(len(groups))]
    toned = list(zip(groups, tones, strict=True))
    metrics = dict.fromkeys(group.metric for group in groups)
    return [
        _chart([(group, tone) for group, tone in toned if group.metric == metric], metric, place)
        for place, metric in enumerate(metrics)
    ]


def _chart(toned: Sequence[tuple[SeedGroup, str]], metric: str, place: int) -> Chart:
    """Draw the mean over the seeds of each config in its color, and the range of its seeds."""
    groups, tones = zip(*toned, strict=True)
    alone = len(groups) == 1
    lines = [_over_updates(group) for group in groups]
    marks: list[Mark] = []
    for group, tone, (updates, values) in zip(groups, tones, lines, strict=True):
        low, high = values.min(axis=1).tolist(), values.max(axis=1).tolist()
        label = "worst to best seed" if alone else ""
        marks.append(Band(label, tone, updates, low, high))
        label = "mean of the seeds" if alone else group.name
        marks.append(Curve(label, tone, updates, values.mean(axis=1).tolist()))
    names = " and ".join(f"{group.name} ({len(group.counted)} run seeds)" for group in groups)
    ends = "; ".join(
        f"the mean of {group.name} goes from {number(float(values[0].mean()))} after "
        f"{updates[0]:g} updates to {number(float(values[-1].mean()))} after {updates[-1]:g}"
        for group, (updates, values) in zip(groups, lines, strict=True)
    )
    return Chart(
        name=f"seeds-{place}",
        caption=f"Held-out {metric} of {names}: the mean over run seeds, and the band from the "
        f"worst to the best seed.{_cut(groups, lines)}",
        alt=f"Line chart of held-out {metric} over run seeds: {ends}.",
        x_label="updates",
        y_label=metric,
        marks=marks,
    )


def _cut(
    groups: Sequence[SeedGroup],
    lines: Sequence[tuple[list[float], Float64[np.ndarray, "updates seeds"]]],
) -> str:
    """Say which curves end before the last score of a seed; begins with a space."""
    ends = [
        f"{group.name} after {updates[-1]:g} updates"
        for group, (updates, _) in zip(groups, lines, strict=True)
        if any(run.scores[-1].generation > updates[-1] for run in group.counted)
    ]
    if not ends:
        return ""
    return f" A mean ends where a seed has no later score: {', '.join(ends)}."


def _over_updates(group: SeedGroup) -> tuple[list[float], Float64[np.ndarray, "updates seeds"]]:
    """Return the updates after which every counted seed has a score, and those scores."""
    by_run = [{score.generation: score.mean for score in run.scores} for run in group.counted]
    updates = sorted(set(by_run[0]).intersection(*by_run[1:]))
    values = np.array([[one[update] for one in by_run] for update in updates], dtype=np.float64)
    return [float(update) for update in updates], values
