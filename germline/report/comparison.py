"""Several runs side by side: settings that differ, scores, and those over several run seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64
from pydantic import BaseModel

from germline.config import Config
from germline.evaluation.statistics import (
    SeedDifference,
    SeedStatistics,
    seed_difference,
    seed_statistics,
)
from germline.record.run_paths import counted_seeds, is_seed_study
from germline.report.run_facts import RunFacts
from germline.report.text_format import Table, escape_control_characters, over_seeds, score
from germline.types import HeldOutScore

ALWAYS = ("model", "task", "space", "strategy", "generations", "seed")
"""Settings that are shown even if they are the defaults."""

SMALLEST_GROUP = 2


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
        return {name: seed_statistics([one.mean for one in some]) for name, some in columns}

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
        by_run = [{one.generation: one.mean for one in run.scores} for run in self.counted]
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


def comparison_tables(runs: Sequence[RunFacts], groups: Sequence[SeedGroup]) -> dict[str, Table]:
    """Return tables of the held-out scores of runs, and of the means over run seeds if any."""
    rows = [
        (
            str(run.path),
            run.metric,
            score(run.scores[0]) if run.scores else "",
            score(run.scores[-1]) if run.scores[1:] else "",
            str(run.scores[-1].n) if run.scores else "",
        )
        for run in runs
    ]
    tables = {"Results": Table(("run", "metric", "before", "after", "n"), rows)}
    if groups:
        means = [
            (
                escape_control_characters(group.name),
                group.metric,
                str(len(group.counted)),
                *map(over_seeds, group.statistics.values()),
            )
            for group in groups
        ]
        names = ("config", "metric", "seeds", "before", "best", "after")
        tables["Over run seeds"] = Table(names, means)
    return tables


def changed_settings(config: Config) -> dict[str, Any]:
    """Return the settings that differ from the defaults, and always those of `ALWAYS`."""
    found, values = _changed(config), config.model_dump(mode="json")
    for name in ALWAYS:
        is_section = isinstance(getattr(config, name), BaseModel)
        found.setdefault(name, values[name]["kind"] if is_section else values[name])
    if not config.method.perturbs and config.strategy.kind == "nes":  # its learning rate alone
        strategy = found.pop("strategy")
        if isinstance(strategy, dict):
            found["strategy"] = {key: value for key, value in strategy.items() if key != "kind"}
    return {name: found[name] for name in (*ALWAYS, *found) if name in found}


def flatten_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Name nested settings as overrides do: `strategy.sigma`."""
    found: dict[str, Any] = {}
    for name, value in sorted(values.items(), key=_kind_first):
        if isinstance(value, Mapping) and value:
            found |= flatten_settings(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def differing_settings(configs: Sequence[Config]) -> dict[str, list[Any]]:
    """Return the settings that differ between configs; `...` if a config lacks the setting."""
    all_settings = [flatten_settings(config.model_dump(mode="json")) for config in configs]
    names = dict.fromkeys(name for settings in all_settings for name in settings)
    rows = {name: [settings.get(name, ...) for settings in all_settings] for name in names}
    return {name: row for name, row in rows.items() if any(value != row[0] for value in row)}


def _changed(section: BaseModel) -> dict[str, Any]:
    """Return the settings of a section that differ from the defaults, together with its kind."""
    dumped = section.model_dump(mode="json")
    found: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        different = value != field.get_default(call_default_factory=True)
        if isinstance(value, BaseModel) and different:
            inside = _changed(value)
            found[name] = inside["kind"] if inside.keys() == {"kind"} else inside
        elif name == "kind" or different:
            found[name] = dumped[name]
    return dict(sorted(found.items(), key=_kind_first))


def _kind_first(item: tuple[str, Any]) -> bool:
    return item[0] != "kind"
