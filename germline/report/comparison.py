"""Several runs: differences of their last scores, and configs that were trained with several seeds.

A difference of two runs is paired over the same held-out examples; one of two configs is over their
run seeds.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from germline.evaluation.score_difference import PairedDifference, paired_difference
from germline.evaluation.seed_statistics import (
    SeedDifference,
    SeedStatistics,
    seed_difference,
    seed_statistics,
)
from germline.record.seed_study import counted_seeds, is_seed_study
from germline.report.run_facts import RunFacts
from germline.report.text_format import number, seed_difference_text
from germline.types import HeldOutScore

SMALLEST_GROUP = 2

MORE_SEEDS = (
    "More seeds may decide: repeat germline train of both configs with more seeds (such as "
    "seeds=0..9) and the same --out, which keeps the seeds that are trained."
)


@dataclass(frozen=True)
class SeedGroup:
    """The runs of one folder of several run seeds; `counted_seeds` says which are averaged."""

    name: str
    runs: Sequence[RunFacts]
    counted: Sequence[RunFacts]

    @property
    def metric(self) -> str:
        """The metric of the held-out scores."""
        return self.runs[0].metric

    @property
    def ends(self) -> list[tuple[HeldOutScore, HeldOutScore, HeldOutScore]]:
        """The score before training, the best and the newest one of each counted seed."""
        return [(run.scores[0], best, run.scores[-1]) for run in self.counted if (best := run.best)]

    @property
    def statistics(self) -> dict[str, SeedStatistics]:
        """Scores before training, best ones, and newest ones, over the counted seeds."""
        columns = zip(("start", "best", "end"), zip(*self.ends, strict=True), strict=False)
        return {name: seed_statistics([one.mean for one in scores]) for name, scores in columns}

    def as_json(self) -> dict[str, Any]:
        """Return the scores of every counted seed, and their statistics, as in `seeds.json`."""
        rows = [
            {
                "seed": run.config.seed,
                "metric": end.metric,
                "start": start.mean,
                "best": best.mean,
                "best_generation": best.generation,
                "end": end.mean,
                "generations": end.generation,
            }
            for run, (start, best, end) in zip(self.counted, self.ends, strict=True)
        ]
        over_seeds = {name: asdict(one) for name, one in self.statistics.items()}
        return {"results": rows, "over_seeds": over_seeds or None}

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

    def over_updates(self) -> tuple[list[float], Float64[np.ndarray, "updates seeds"]]:
        """Return the updates after which every counted seed has a score, and those scores."""
        by_run = [{score.generation: score.mean for score in run.scores} for run in self.counted]
        updates = sorted(set(by_run[0]).intersection(*by_run[1:]))
        values = np.array([[one[update] for one in by_run] for update in updates])
        return [float(update) for update in updates], values

    def minus(self, first: "SeedGroup") -> SeedDifference | None:
        """Return the mean last score less that of another config; None of other metrics."""
        if self is first or self.metric != first.metric:
            return None
        scores = [
            {run.config.seed: run.scores[-1].mean for run in one.counted} for one in (self, first)
        ]
        return seed_difference(*scores)

    def verdict(self, first: "SeedGroup") -> str:
        """Say in a sentence whether this config is better than the first one; empty for that."""
        found = self.minus(first)
        if found is None:
            return ""
        about = f"{self.name} minus {first.name} is {seed_difference_text(found)}"
        if not found.decides:
            more = f" {MORE_SEEDS}" if found.interval else ""
            return f"The seeds do not decide: {about}.{more}"
        higher_is_better = self.counted[0].scores[-1].higher_is_better
        word = "better" if (found.mean > 0) == higher_is_better else "worse"
        return f"{self.name} is {word} than {first.name} by {number(abs(found.mean))}: {about}."


def seed_groups(runs: Sequence[RunFacts]) -> list[SeedGroup]:
    """Group runs by the folder of several run seeds that they are in.

    Folders without two seeds that have a score after training are left out.
    """
    folders: dict[tuple[str, int], list[RunFacts]] = {}
    for run in runs:
        folder = run.path.resolve().parent
        if is_seed_study(folder) and run.scores:
            # A seed that was trained on alone would pull the mean towards longer runs.
            folders.setdefault((str(folder), run.config.generations), []).append(run)
    groups = []
    for some in folders.values():
        updates = [run.scores[-1].generation for run in some]
        places = counted_seeds([run.has_ended for run in some], updates)
        if len(places) >= SMALLEST_GROUP:
            name = some[0].name.rpartition("/")[0]
            groups.append(SeedGroup(name, some, [some[place] for place in places]))
    return groups


def compared_runs(
    runs: Sequence[RunFacts], groups: Sequence[SeedGroup]
) -> list[PairedDifference | str]:
    """Return the last score of each run less that of the first run, or why there is no difference.

    Where several configs have several run seeds each, a run is compared with the run of the first
    config that has the same seed. The reason is empty for a run that is compared with itself.
    """
    if len(groups) < 2:
        return [_compared(run, runs[0]) for run in runs]
    by_seed = {run.config.seed: run for run in groups[0].runs}
    return [_compared(run, by_seed.get(run.config.seed)) for run in runs]


def comparison_heading(groups: Sequence[SeedGroup]) -> str:
    """Name the runs that `compared_runs` compares with, as the heading of a column."""
    return "the first" if len(groups) < 2 else f"{groups[0].name}, same seed"


def _compared(run: RunFacts, other: RunFacts | None) -> PairedDifference | str:
    if other is None:
        return "none: no run has the same seed"
    if run is other:
        return ""
    for one, name in ((run, "this run"), (other, other.name)):
        if not one.scores or not one.scores[-1].generation:
            return f"none: {name} has no score after training"
    if run.metric != other.metric:
        return f"none: the metrics differ ({run.metric}, {other.metric} of {other.name})"
    difference = paired_difference(run.scores[-1], other.scores[-1])
    if _asked(run) != _asked(other) or not difference:
        return "none: scored on other examples (germline eval scores both on the same)"
    return difference


def _asked(run: RunFacts) -> list[tuple[str, str]]:
    """Return the held-out prompts and gold answers that a run has recorded."""
    sampled = next((one.samples for one in run.held_out if one.samples), ())
    return [(sample.prompt, sample.answer) for sample in sampled]
