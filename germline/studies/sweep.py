"""A sweep: a config, the space of settings that is searched, and how within which budget.

Population, batch size and generations trade against each other: a run of any trial ends after the
same number of rollouts, `budget.rollouts` of the config or what the config itself would spend.
"""

import math
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from filelock import FileLock
from pydantic import Field

from germline.config import Budget, Config, load_config
from germline.config.base import Listed, Section, as_override
from germline.config.loader import read_recorded
from germline.methods.method import check_task
from germline.record.atomic_files import check_writable, read_json, write_json
from germline.record.run_paths import check_unused
from germline.report.comparison import flatten_settings
from germline.studies.study_file import SAME
from germline.studies.sweep_results import SHARED, SWEEP_FILE, TRIALS
from germline.studies.sweep_samplers import Samplers, without_password
from germline.studies.sweep_selection import rungs_of
from germline.studies.sweep_space import SweepSpace, overrides_of
from germline.tasks import make_task
from germline.types import GermlineError

FIXED = re.compile(rf"seed|generations|(budget|record|held_out)(\..*)?|task|{SAME.pattern}")
"""What is asked, how it is scored, and how long: no trial may change it, and a study decides it."""

RACE_SHARE = 0.3
"""Share of the budget for more run seeds of the best trials."""

Sampler = Literal["tpe", "random", "grid", "cmaes", "gp"]
Objective = Literal["score", "peak_memory", "tokens"]


class SweepBudget(Budget):
    """Limits of all trials together."""

    trials: int | None = Field(None, ge=1)
    """Number of trials."""


class SweepOptions(Section):
    """How a sweep searches: `sweep.sampler=grid` on the command line."""

    budget: SweepBudget = SweepBudget()
    """Limits of all trials together: the settings of `budget`, and `trials`."""
    sampler: Sampler = "tpe"
    """What proposes trials."""
    objectives: Annotated[tuple[Objective, ...], Listed] = ("score",)
    """What is optimized, the score among them; of several, the Pareto front."""
    seeds: int = Field(4, ge=1)
    """Largest number of run seeds of a trial; the first one is `seed` of the config."""
    test_seeds: int = Field(2, ge=0)
    """Further run seeds, with which the best trials are trained again."""
    random: bool = True
    """Whether half of the budget is spent on random search, to compare with."""
    storage: str | None = None
    """URL of Optuna's storage; default: `study.db` in the folder."""

    @property
    def samplers(self) -> list[str]:
        """The sampler, and random search where it is beside it."""
        is_alone = not self.random or self.sampler in ("random", "grid")
        return [self.sampler] if is_alone else [self.sampler, "random"]

    @property
    def is_grid(self) -> bool:
        """Whether every trial is trained to its end with all run seeds, to map the space."""
        return self.sampler == "grid"

    @property
    def searched(self) -> dict[str, float]:
        """The limits before the race; that of trials, which it adds none to, is whole."""
        share = 1 - RACE_SHARE if self.seeds > 1 and not self.is_grid else 1.0
        limits = self.budget.limits.items()
        return {name: limit * (1 if name == "trials" else share) for name, limit in limits}


@dataclass
class Sweep:
    """A sweep that can be run.

    Attributes:
        space: what is searched; ranges in units of the probe have numbers once it is prepared.
        probed: settings that the probe has chosen.
        limit: rollouts of a run of a trial.
        rungs: rollouts of a run after which trials are compared.
        stops: those at which a trial is judged; a grid trains every trial to the last one.
        seeds: run seeds of the search.
        first_seeds: those with which a trial begins; a grid trains it with all at once.
        test_seeds: run seeds of tests.
        trials: the folder of the trials.
        lock: that of the sweep: one process at a time begins trials.

    Raises:
        GermlineError: a setting is unknown or may not be searched, a trial could not be trained, or
            the budget is too small for a trial.
    """

    source: str
    overrides: Sequence[str]
    space: SweepSpace
    out: Path
    options: SweepOptions

    def __post_init__(self) -> None:
        options, self.base = self.options, load_config(self.source, self.overrides)
        self.probed: list[str] = []
        self.trials, self.lock = self.out / TRIALS, FileLock(self.out / ".sweep.lock")
        rows = rollouts_of(self.base)
        self.limit = self.base.budget.rollouts or rows * self.base.generations
        self.rungs = rungs_of(self.limit, rows)
        self.stops = self.rungs[-1:] if options.is_grid else self.rungs
        seeds = [self.base.seed + n for n in range(options.seeds + options.test_seeds)]
        self.seeds, self.test_seeds = seeds[: options.seeds], seeds[options.seeds :]
        self.first_seeds = self.seeds if options.is_grid else self.seeds[:1]
        self._check()

    def _check(self) -> None:
        options, dimensions = self.options, self.space.dimensions
        are_numbers = all(one.scale != "values" and not one.when for one in dimensions)
        is_plain = are_numbers and len(dimensions) > 1 and len(options.objectives) == 1
        if not options.budget.limits and not options.is_grid:
            raise GermlineError("sweep: give all trials a budget, such as --budget rollouts=40000")
        if "score" not in options.objectives:
            raise GermlineError("sweep.objectives: trials are compared by score: add it")
        if options.sampler == "cmaes" and not is_plain:
            raise GermlineError(
                "sweep.sampler=cmaes searches two numbers or more, and no lists or conditions, for "
                "one objective: use tpe"
            )
        if not self.limit:
            raise GermlineError(
                f"sweep: strategy.kind={self.base.strategy.kind} chooses the number of members: "
                "set budget.rollouts, what a run of a trial may spend"
            )
        least = self.limit * len(self.first_seeds)
        share = options.searched.get("rollouts", math.inf) / len(options.samplers)
        if share < least:
            asked = options.budget.rollouts or 0
            raise GermlineError(
                f"--budget rollouts={asked}: a trial of {least} rollouts (budget.rollouts of the "
                f"config, or its generations) is more than the {share:.0f} that a sampler may "
                f"spend: give {math.ceil(asked * least / share)}, or a smaller budget.rollouts"
            )
        for one in dimensions:
            if FIXED.fullmatch(one.name):
                raise GermlineError(
                    f"sweep: {one.name} cannot be searched, because all trials answer the same "
                    "questions for the same rollouts: write it after the config, as KEY=VALUE"
                )
        if not self.space.needs_probe:
            self._check_space()

    def plan(self, settings: Mapping[str, Any], rollouts: int) -> tuple[Config, list[str]]:
        """Return the config of a trial that ends after so many rollouts, and its overrides."""
        overrides = [*self.overrides, *self.probed, *overrides_of(settings)]
        rows = rollouts_of(config := load_config(self.source, overrides))
        generations = math.ceil(self.limit / rows) if rows else config.generations
        overrides += [f"generations={generations}", f"budget.rollouts={rollouts}"]
        overrides.append(as_override("record.shared", str(self.out.resolve() / SHARED)))
        return load_config(self.source, overrides), overrides

    def prepare(self) -> Samplers:
        """Write `sweep.json`, or compare with the one that is there; return the samplers.

        Raises:
            GermlineError: the folder holds a sweep of another config or space.
        """
        check_writable(self.out, folder=True)
        with self.lock:  # makes the folder
            facts = self._facts()
            if (self.out / SWEEP_FILE).exists():
                facts = self._continued(facts)
            else:
                if not (self.out / "probe.json").exists():
                    check_unused(self.out)
                probed = self._probe() if self.space.needs_probe else None
                facts |= {"name": f"germline-{uuid.uuid4().hex[:12]}", "probe": probed}
            if probed := facts["probe"]:
                self.probed = probed["settings"]
                self.space = self.space.in_units(probed["units"])
                self._check_space()
            self.trials.mkdir(exist_ok=True)
            write_json(self.out / SWEEP_FILE, facts)
            url = self.options.storage or f"sqlite:///{(self.out / 'study.db').resolve()}"
            count = len(self.options.objectives)
            return Samplers(self.space, url, facts["name"], count, self.base.seed)

    def _facts(self) -> dict[str, Any]:
        options = self.options
        return {
            "config": self.source,
            "overrides": list(self.overrides),
            "space": self.space.given,
            "sampler": options.sampler,
            "samplers": options.samplers,
            "objectives": list(options.objectives),
            "seeds": self.seeds,
            "storage": without_password(options.storage or ""),
            "settings": self.base.with_absolute_paths().model_dump(mode="json"),
            "rungs": self.rungs,
            "budget": options.budget.limits,
            "test_seeds": self.test_seeds,
        }

    def _continued(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts of the sweep that is continued; its budget and tests may change."""
        was = read_json(self.out / SWEEP_FILE)
        kept = was | {"settings": read_recorded(was["settings"]).model_dump(mode="json")}
        names = ("settings", "space", "sampler", "samplers", "objectives", "seeds", "storage")
        old, new = (flatten_settings({name: one[name] for name in names}) for one in (kept, asked))
        for name in {**old, **new}:
            if old.get(name) != new.get(name):
                raise GermlineError(
                    f"{self.out} holds a sweep with another {name.removeprefix('settings.')} (it "
                    f"was {old.get(name)!r}, asked for is {new.get(name)!r}): choose another "
                    "folder (--out), or repeat the old command"
                )
        return {**was, **asked}

    def _probe(self) -> dict[str, Any]:
        """Measure the units of ranges with `germline probe`, and what its advice implies."""
        from germline.studies.probe import probe

        advice = probe(self.base)
        write_json(self.out / "probe.json", advice.values())
        units = {f"strategy.{name}": value for name, value in advice.settings.items()}
        unit = units.pop("strategy.sigma_unit", None)
        settings = [f"strategy.sigma_unit={unit}"] if unit else []
        return {"units": units, "settings": [*settings, f"record.edge={advice.edge:.3g}"]}

    def _check_space(self) -> None:
        task, made = make_task(self.base.task), list[object]()
        for name, settings in self.space.corners():
            try:
                check_task(config := self.plan(settings, self.limit)[0], task)
                if (name, config) in made:
                    raise GermlineError(f"another {name} gives the same config")
                made.append((name, config))
            except GermlineError as error:
                shown = " ".join(overrides_of(settings))
                raise GermlineError(
                    f"sweep: a trial of {shown} cannot be trained: {error}"
                ) from None


def rollouts_of(config: Config) -> int:
    """Return the rollouts of a generation; 0 where the strategy chooses the number of members."""
    return config.method.generated_rows(config.strategy.population or 0) * config.batch_size
