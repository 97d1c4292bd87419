"""Several run seeds of one config in a comparison: mean, range and interval of their scores."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from germline.evaluation.seed_statistics import SeedStatistics, seed_statistics
from germline.record.seed_study import counted_seeds
from germline.report.curves import metric_words
from germline.report.diff import flatten_settings
from germline.report.run_facts import RunFacts
from germline.report.svg_charts import Band, Chart, Curve
from germline.report.text_format import number

FEWEST_SEEDS = 2


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
    chart: Chart

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
    """Group runs whose settings differ in the seed alone.

    Groups of one seed, and groups without a score after training, are left out. Of two
    runs of the same seed, which have the same bits, the later one counts.
    """
    groups: dict[str, dict[int, RunFacts]] = {}
    for run in runs:
        settings = flatten_settings(run.config.model_dump(mode="json"))
        settings.pop("seed")
        if run.scores and not run.ancestors:
            by_seed = groups.setdefault(repr(sorted(settings.items(), key=str)), {})
            by_seed[run.config.seed] = run
    several = [[*one.values()] for one in groups.values() if len(one) >= FEWEST_SEEDS]
    counted = [(runs, which) for runs in several if (which := _counted(runs))]
    return [_group(*one, place) for place, one in enumerate(counted)]


def _counted(runs: Sequence[RunFacts]) -> list[RunFacts]:
    ended = [run.has_ended for run in runs]
    places = counted_seeds(ended, [run.scores[-1].generation for run in runs])
    return [runs[place] for place in places]


def _group(runs: Sequence[RunFacts], counted: Sequence[RunFacts], place: int) -> SeedGroup:
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
        chart=_chart(counted, name, metric, place),
    )


def _chart(runs: Sequence[RunFacts], name: str, metric: str, place: int) -> Chart:
    """Draw the mean held-out score over seeds, where every seed has one, and their range."""
    by_run = [{score.generation: score.mean for score in run.scores} for run in runs]
    updates = sorted(set(by_run[0]).intersection(*by_run[1:]))
    values = np.array([[one[update] for one in by_run] for update in updates])
    places = [float(one) for one in updates]
    means = values.mean(axis=1).tolist()
    return Chart(
        name=f"seeds-{place}",
        caption=f"Held-out {metric} over {len(runs)} run seeds of the config of {name}: the mean, "
        "and the band from the worst to the best seed.",
        alt=f"Line chart of held-out {metric} over {len(runs)} run seeds. The mean goes from "
        f"{number(means[0])} after {updates[0]} updates to {number(means[-1])} after "
        f"{updates[-1]}.",
        x_label="updates",
        y_label=metric,
        marks=[
            Band(
                "worst to best seed",
                "mean",
                places,
                values.min(axis=1).tolist(),
                values.max(axis=1).tolist(),
            ),
            Curve("mean of the seeds", "mean", places, means),
        ],
    )
