"""A study: methods on tasks with several run seeds, at the same budget, as a YAML file says.

    seeds: 0..4
    budget: {rollouts: 10240}
    tasks: {arithmetic: arithmetic, countdown: {config: countdown, target: 0.84}}
    methods: {es: {}, zo_grpo: {settings: [method=zo_grpo, batch_size=32]}}

A cell of the study is a task, a method and a run seed. Its run is an ordinary run directory,
`OUT/TASK/METHOD/seed-N`. Settings are laid over the config of the task in this order: those of the
task, of the study, of the method, of the method on this task, and the budget.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from germline.config import Budget, Config, load_config
from germline.config.base import Section, as_override, make_section
from germline.config.config_files import read_file
from germline.config.loader import apply_overrides
from germline.estimates.machine import with_dtype
from germline.methods.method import check_task
from germline.record.atomic_files import read_json
from germline.report.comparison import differing_settings
from germline.studies.run_seeds import train_seeds
from germline.tasks import make_task
from germline.types import GermlineError

NAME = r"[\w.+-]*\w"
"""Names of tasks and methods, which are names of folders, too."""

SAME = re.compile(r"model|task\.(?!kl_).*|held_out\.(?!every$|patience$).*")
"""Settings that decide what is asked and how answers are scored: equal in the runs of a task.

The temperature of a task may differ, unless held-out completions have it too."""

Settings = tuple[str, ...]


class StudyTask(Section):
    """A task of a study; a text alone is its `config`."""

    config: str = Field(min_length=1)
    """A config file, in the folder of the study or the working directory, or a shipped config."""
    target: float | None = None
    """Held-out score to reach; the report says what each method spends before."""
    settings: Settings = ()
    """Settings of all runs of the task."""

    @model_validator(mode="before")
    @classmethod
    def _a_text_is_the_config(cls, value: object) -> object:
        return {"config": value} if isinstance(value, str) else value


class StudyMethod(Section):
    """A method of a study."""

    settings: Settings = ()
    """Settings of all runs of the method."""
    sweep: str | None = None
    """Folder of a `germline sweep` that has ended: the settings of the sweep and of its best trial
    come first, and the cost of the sweep is reported."""
    on: dict[str, Settings] = Field({})
    """Further settings on some tasks, by the name of the task."""


class StudyFile(Section):
    """The file of a study."""

    tasks: dict[Annotated[str, Field(pattern=f"^{NAME}$")], StudyTask] = Field(min_length=1)
    methods: dict[Annotated[str, Field(pattern=f"^{NAME}$")], StudyMethod] = Field(min_length=1)
    seeds: str | int | tuple[int, ...] = "0..4"
    """Run seeds, as of `germline train`."""
    budget: Budget = Budget()
    """What every run may spend."""
    settings: Settings = ()
    """Settings of all runs."""
    after: tuple[int, ...] = ()
    """Rollouts after which the report shows scores, beside those at the end."""
    eval: Settings = ("--kl",)
    """Options of each call of `germline eval` for every run that has ended, such as `[--kl,
    '--samples 16']`."""


@dataclass(frozen=True)
class Cell:
    """One run of a study; `overrides` are laid over the config named `source`."""

    task: str
    method: str
    seed: int
    source: str
    overrides: Settings
    path: Path

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"{self.task}, {self.method}, seed {self.seed}"


class Study:
    """A study that can be run.

    Args:
        path: the file.
        overrides: settings of the file, such as `seeds=0..1`.
        out: the folder of its runs; default: `runs/NAME`.
        only: names of tasks and methods; default: all tasks and all methods.

    Raises:
        GermlineError: the file or a config of it cannot be read or used, a method cannot train on a
            task, or the runs of a task would not answer the same questions.
    """

    def __init__(
        self,
        path: Path,
        overrides: Sequence[str] = (),
        out: Path | None = None,
        only: Sequence[str] = (),
    ) -> None:
        shipped = Path(__file__).with_name(path.with_suffix(".yaml").name)
        path = shipped if shipped.exists() and not path.exists() else path
        if not path.exists():
            names = ", ".join(one.stem for one in sorted(shipped.parent.glob("*.yaml")))
            raise GermlineError(f"compare: there is no file {str(path)!r}; shipped are {names}")
        self.name = path.stem
        self.file = _read(path, overrides)
        self.out = out or Path("runs") / self.name
        self.sweeps = {
            name: _read_best(Path(one.sweep))
            for name, one in self.file.methods.items()
            if one.sweep
        }
        self.configs: dict[tuple[str, str], Config] = {}
        self.cells: list[Cell] = []
        self.tasks, self.methods = (
            [name for name in names if name in only] or [*names]
            for names in (self.file.tasks, self.file.methods)
        )
        if unknown := {*only} - {*self.file.tasks, *self.file.methods}:
            raise GermlineError(
                f"compare --only {min(unknown)}: the tasks are {', '.join(self.file.tasks)}, and "
                f"the methods are {', '.join(self.file.methods)}"
            )
        for task, method in product(self.tasks, self.methods):
            source, settings = self._settings(task, method, path.parent)
            try:
                config = load_config(source, settings)
            except GermlineError as error:
                raise GermlineError(f"{task}, {method}: {error}") from None
            self.configs[task, method] = config
            given = self.file.seeds
            seeds = given if isinstance(given, tuple) else str(given)
            runs = train_seeds(config, seeds, self._folder(task, method))
            self.seeds = runs.seeds
            self.cells += [
                Cell(task, method, seed, source, settings, runs.path(seed)) for seed in runs.seeds
            ]
        self.cells.sort(key=lambda cell: self.seeds.index(cell.seed))  # a seed of everything first
        for task in self.tasks:
            self._check_same_questions(task)
            self._check_methods(task)

    def config(self, cell: Cell) -> Config:
        """Return the config of a run."""
        return self.configs[cell.task, cell.method].model_copy(update={"seed": cell.seed})

    def prepare(self) -> None:
        """Write the folders of the runs, and refuse runs of other settings that are there.

        Methods that `engine.dtype=auto` serves in different dtypes are refused too.
        """
        for task in self.tasks:
            self._check_same_dtype(task)
        for (task, method), config in self.configs.items():
            train_seeds(config, self.seeds, self._folder(task, method)).prepare()

    def _folder(self, task: str, method: str) -> Path:
        return self.out / task / method

    def _settings(self, task: str, method: str, folder: Path) -> tuple[str, Settings]:
        """Return the config of a task, and what is laid over it for a method."""
        of_task, of_method = self.file.tasks[task], self.file.methods[method]
        beside = folder / of_task.config
        source = str(beside) if beside.exists() else of_task.config
        limits = self.file.budget.limits.items()
        return source, (
            *of_task.settings,
            *self.file.settings,
            *self.sweeps.get(method, {}).get("overrides", ()),
            *of_method.settings,
            *of_method.on.get(task, ()),
            *(as_override(f"budget.{name}", limit) for name, limit in limits),
        )

    def _check_same_questions(self, task: str) -> None:
        """Refuse runs whose prompts, examples or held-out scores would differ."""
        first, *others = self.methods
        for method in others:
            both = [self.configs[task, name] for name in (first, method)]
            is_sampled = any(one.held_out.temperature is None for one in both)
            differing = differing_settings([one.with_absolute_paths() for one in both])
            unequal = [
                f"{name} is {was!r} with {first} and {now!r} with {method}"
                for name, (was, now) in differing.items()
                if SAME.fullmatch(name) and (name != "task.temperature" or is_sampled)
            ]
            if unequal:
                raise GermlineError(
                    f"{task}: the methods would not answer the same questions: "
                    f"{'; '.join(unequal)}: set it for the task, or make two tasks of it"
                )

    def _check_same_dtype(self, task: str) -> None:
        served = {}
        for method in self.methods:
            config = self.configs[task, method]
            if getattr(config.engine, "dtype", "") == "auto":
                dtype = getattr(with_dtype(config).engine, "dtype", "")
                served[method] = "bfloat16" if dtype == "bfloat16" else "float32"
        if len({*served.values()}) > 1:
            found = ", ".join(f"{method} {dtype}" for method, dtype in served.items())
            raise GermlineError(
                f"{task}: engine.dtype=auto differs on this machine, and so would the time and the "
                f"rounding of the methods ({found}): set engine.dtype=float32 or bfloat16 for all"
            )

    def _check_methods(self, task: str) -> None:
        """Refuse methods that cannot train on a task, or need a package that is missing."""
        problem = make_task(self.configs[task, self.methods[0]].task)
        refused: dict[str, GermlineError] = {}
        for method in self.methods:
            try:
                check_task(self.configs[task, method], problem)
            except GermlineError as error:
                refused[method] = error
        if refused:
            able = [method for method in self.methods if method not in refused]
            reasons = "; ".join(f"{method}: {error}" for method, error in refused.items())
            raise GermlineError(
                f"{task}: {reasons}. Methods of this study that can: {', '.join(able) or 'none'}"
            )


def _read_best(sweep: Path) -> dict[str, Any]:
    """Return the best trial of a sweep that has ended: `number`, `overrides`, `spent`, `seeds`."""
    file = sweep / "best.json"
    if not file.exists():
        raise GermlineError(
            f"{sweep}: this sweep has no best trial, or has not ended: repeat its command"
        )
    return read_json(file)


def _read(path: Path, overrides: Sequence[str]) -> StudyFile:
    values = apply_overrides(read_file(path, "compare"), overrides)
    file = make_section(StudyFile, values, f"{path}: ", "")
    for name, method in file.methods.items():
        unknown = method.on.keys() - file.tasks.keys()
        if unknown:
            raise GermlineError(
                f"{path}: methods.{name}.on names {', '.join(sorted(unknown))}, and the tasks are "
                f"{', '.join(file.tasks)}"
            )
    return file
