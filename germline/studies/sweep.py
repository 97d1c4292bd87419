"""A sweep: a config, the space of settings that is searched, and a budget for all trials together.

Population, batch size and generations trade against each other: a run of any trial ends after the
same number of rollouts, `budget.rollouts` of the config or what the config itself would spend.
"""

import math
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from germline.config import Config, load_config
from germline.config.base import as_override
from germline.config.loader import read_recorded, without_warnings
from germline.methods.method import check_task
from germline.record.atomic_files import explain_write_errors, write_json
from germline.report.diff import flatten_settings
from germline.studies.study_file import SAME
from germline.studies.sweep_files import SHARED, SWEEP_FILE, TRIALS, read_json
from germline.studies.sweep_options import SweepOptions
from germline.studies.sweep_samplers import Samplers, without_password
from germline.studies.sweep_selection import rungs_of
from germline.studies.sweep_space import Settings, SweepSpace, overrides_of
from germline.tasks import make_task
from germline.types import GermlineError

OBJECTIVES = {"score": "maximize", "peak_memory": "minimize", "tokens": "minimize"}
"""Objectives and their directions; a cost is signed so that its score is higher where better."""

FIXED = re.compile(rf"seed|generations|(budget|record|held_out)(\..*)?|task|{SAME.pattern}")
"""Settings, and whole sections, that no trial may change.

They say what is asked, how it is scored, or how long."""

BEFORE = {".sweep.lock", "config.yaml", "probe.json"}
"""Files that a folder may have before the sweep begins."""


@dataclass
class Sweep:
    """A sweep that can be run.

    Attributes:
        source: name of the config.
        overrides: of the config.
        space: what is searched; ranges in units of the probe have numbers once it is prepared.
        out: the folder.

    Raises:
        GermlineError: a setting is unknown or may not be searched, a trial could not be trained, or
            the budget is too small for a trial.
    """

    source: str
    overrides: Sequence[str]
    space: SweepSpace
    out: Path
    options: SweepOptions
    base: Config = field(init=False)

    def __post_init__(self) -> None:
        self.base = load_config(self.source, self.overrides)
        self.probed: list[str] = []  # settings that the probe has chosen
        if self.options.sampler == "cmaes" and not self.space.is_numeric:
            raise GermlineError(
                "sweep.sampler=cmaes searches two numbers or more, and no lists or conditions: use "
                "tpe"
            )
        rows = rollouts_of(self.base)
        self.limit = self.base.budget.rollouts or rows * self.base.generations
        if not self.limit:
            raise GermlineError(
                f"sweep: strategy.kind={self.base.strategy.kind} chooses the number of members: "
                "set budget.rollouts, what a run of a trial may spend"
            )
        self.rungs = rungs_of(self.limit, rows)
        least, share = self.limit * len(self.options.samplers), self.options.search_share
        if self.options.searched.get("rollouts", least) < least:
            raise GermlineError(
                f"--budget rollouts={self.options.budget.rollouts}: a trial may need "
                f"{self.limit} (budget.rollouts of the config, or its generations), so ask for at "
                f"least {math.ceil(least / share)} or set a smaller budget.rollouts"
            )
        for one in self.space.dimensions:
            if is_fixed(one.name):
                raise GermlineError(
                    f"sweep: {one.name} cannot be searched, because all trials answer the same "
                    "questions for the same rollouts: write it after the config, as KEY=VALUE"
                )
        if not self.space.needs_probe:
            self._check_space()

    @property
    def stops(self) -> list[int]:
        """The rungs at which a trial is judged; a grid trains every trial to the last one."""
        return self.rungs[-1:] if self.options.is_grid else self.rungs

    @property
    def lock(self) -> FileLock:
        """The lock of the folder: one process at a time begins trials."""
        with explain_write_errors(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        return FileLock(self.out / ".sweep.lock")

    @property
    def seeds(self) -> list[int]:
        """The run seeds of the search."""
        return [self.base.seed + n for n in range(self.options.seeds)]

    @property
    def test_seeds(self) -> list[int]:
        """The run seeds of tests, after those of the search."""
        first = self.base.seed + self.options.seeds
        return [first + n for n in range(self.options.test_seeds)]

    def plan(self, settings: Settings, rollouts: int) -> tuple[Config, list[str]]:
        """Return the config of a trial that ends after so many rollouts, and its overrides."""
        overrides = [*self.overrides, *self.probed, *overrides_of(settings)]
        with without_warnings():  # a trial replaces sections on purpose
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
        with self.lock:
            if (self.out / SWEEP_FILE).exists():
                facts = read_json(self.out / SWEEP_FILE)
                self._check_same(facts)
            else:
                if others := {one.name for one in self.out.iterdir()} - BEFORE:
                    raise GermlineError(
                        f"out: {self.out} holds other files ({min(others)}) and no sweep: choose "
                        "another folder (--out)"
                    )
                facts = {"name": f"germline-{uuid.uuid4().hex[:12]}"}
                facts["probe"] = self._probe() if self.space.needs_probe else None
            facts |= self._facts()
            if probed := facts["probe"]:
                self.probed = probed["settings"]
                self.space = self.space.in_units(probed["units"])
                self._check_space()
            (self.out / TRIALS).mkdir(exist_ok=True)
            write_json(self.out / SWEEP_FILE, facts)
            url = self.options.storage or f"sqlite:///{(self.out / 'study.db').resolve()}"
            directions = [OBJECTIVES[name] for name in self.options.objectives]
            return Samplers(self.space, url, facts["name"], directions, self.base.seed)

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

    def _check_same(self, facts: Mapping[str, Any]) -> None:
        """Refuse to continue a sweep of another config or space; its budget may change."""
        names = ("settings", "space", "sampler", "samplers", "objectives", "seeds", "storage")
        given = [
            {**one, "settings": read_recorded(one["settings"]).model_dump(mode="json")}
            for one in (facts, self._facts())  # with the defaults of this germline
        ]
        was, asked = (flatten_settings({name: one[name] for name in names}) for one in given)
        for name in {**was, **asked}:
            if was.get(name) != asked.get(name):
                raise GermlineError(
                    f"{self.out} holds a sweep with another {name.removeprefix('settings.')} (it "
                    f"was {was.get(name)!r}, asked for is {asked.get(name)!r}): choose another "
                    "folder (--out), or repeat the old command"
                )

    def _probe(self) -> dict[str, Any]:
        """Measure the units of ranges with `germline probe`, and what its advice implies."""
        from germline.studies.probe import probe

        advice = probe(self.base)
        write_json(self.out / "probe.json", advice.values())
        units = {"strategy.sigma": advice.sigma}
        if advice.learning_rate:
            units["strategy.learning_rate"] = advice.learning_rate
        unit = advice.sigma_unit
        settings = [f"strategy.sigma_unit={unit}"] if unit else []
        return {"units": units, "settings": [*settings, f"record.edge={advice.edge:.3g}"]}

    def _check_space(self) -> None:
        """Refuse a space of which a trial could not be trained."""
        task = make_task(self.base.task)
        for settings in self.space.corners():
            try:
                check_task(self.plan(settings, self.limit)[0], task)
            except GermlineError as error:
                shown = " ".join(overrides_of(settings))
                raise GermlineError(
                    f"sweep: a trial of {shown} cannot be trained: {error}"
                ) from None


def is_fixed(setting: str) -> bool:
    """Return whether a setting is equal in all trials, and a study decides it for its methods."""
    return FIXED.fullmatch(setting) is not None


def rollouts_of(config: Config) -> int:
    """Return the rollouts of a generation; 0 where the strategy chooses the number of members."""
    return config.method.generated_rows(config.strategy.population or 0) * config.batch_size
