"""Train one config with several run seeds, to measure how much the results vary between seeds.

Every seed has an ordinary run directory, `seed-N` in the folder of the study, with the same bits as
a run of that seed alone. `seeds.json` holds the config and the seeds from the start, so that an
interrupted study can be continued from its folder; at the end it also holds the summary.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from germline.config import Config, CustomTask, load_config
from germline.config.base import as_override
from germline.config.loader import read_recorded
from germline.record import RunDirectory
from germline.record.atomic_files import explain_write_errors, write_json
from germline.record.run_paths import (
    SEEDS_FILE,
    is_seed_study,
    read_seeds_file,
    seed_run,
    seed_runs,
)
from germline.report.comparison import SeedGroup, differing_settings
from germline.report.html_page import page_path, write_page
from germline.report.run_facts import RunFacts
from germline.run import Training, resume, train
from germline.run.lifecycle import resumed_config
from germline.tasks import make_task
from germline.types import GermlineError

MOST_SEEDS = 1000
"""Largest range of seeds; a longer one is assumed to be a typing error."""

TRAINS_ON = ("generations", "budget.", "held_out.patience", "record.", "graders.", "fleet.")
"""Settings that a run in the folder is trained on with: its scores stay those of the others' kind.

Other settings that `resume` may change, such as `held_out.examples`, would make them another kind.
"""


class SeedStudy:
    """Several run seeds of one config in one folder."""

    def __init__(self, config: Config, seeds: Sequence[int], out: Path) -> None:
        self.config = _as_recorded(config)
        self.seeds = tuple(seeds)
        self.out = out

    @classmethod
    def open(cls, out: Path, overrides: Sequence[str] = ()) -> "SeedStudy":
        """Open the folder of a study that was begun earlier.

        All its runs are trained on with the overrides, such as `generations=100`.
        """
        seeds, config = read_seeds_file(out)
        return cls(resumed_config(read_recorded(config), overrides), seeds, out)

    def path(self, seed: int) -> Path:
        """Return the run directory of a seed."""
        return seed_run(self.out, seed)

    def trainings(self) -> Iterator[Training]:
        """Begin or resume the run of every seed that is not at the end of the config, in order.

        Each training has to be iterated to its end before the next one is asked for. Seeds that
        the folder has are trained on as well, so that all have the same number of generations.
        """
        for seed, config in self.prepare().items():
            training = _begin_or_resume(config, self.path(seed))
            if training is not None:
                yield training

    def prepare(self) -> dict[int, Config]:
        """Write `seeds.json`, and return the config of every seed, those of the folder included.

        Raises:
            GermlineError: the folder holds another run, or a run of another config.
        """
        if is_seed_study(self.out):
            self.seeds = tuple(dict.fromkeys([*read_seeds_file(self.out)[0], *self.seeds]))
        planned = {seed: self.config.model_copy(update={"seed": seed}) for seed in self.seeds}
        if (self.out / "run.json").exists():
            raise GermlineError(
                f"out: {self.out} is the run directory of one run, and several seeds need a folder "
                "of their own: choose another folder (--out)"
            )
        for seed, config in planned.items():
            _check_same_config(config, self.path(seed))
        self._write()
        return planned

    def summary(self) -> SeedGroup:
        """Return the seeds that were begun; those that have held-out scores count."""
        begun = seed_runs(self.out)
        planned = map(self.path, self.seeds)
        runs = [RunFacts(path) for path in planned if path in begun]
        return SeedGroup(self.out.name, runs, [run for run in runs if run.scores])

    def write_results(self, summary: SeedGroup | None = None) -> Path:
        """Write the summary into `seeds.json`, and a report over all seeds; return its path."""
        summary = summary or self.summary()
        self._write(summary.as_json())
        return write_page(summary.runs, page_path(summary.runs, self.out / "report.html"))

    def _write(self, results: Mapping[str, Any] | None = None) -> None:
        config = self.config.model_dump(mode="json")
        facts = {"seeds": list(self.seeds), "config": config, **(results or {})}
        with explain_write_errors(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        write_json(self.out / SEEDS_FILE, facts)


def train_seeds(
    config: Config | Mapping[str, Any] | Path | str,
    seeds: Sequence[int] | str,
    out: Path | str | None = None,
) -> SeedStudy:
    """Return the study of a config over run seeds; iterate its `trainings()` to train them.

    Args:
        config: a Config, a mapping of settings, or the path of a YAML file; its own `seed` is not
            used.
        seeds: run seeds: numbers, or a text such as `0..4`; they are added to those of the folder.
        out: folder of the study; default: one under `runs/` named by task, space and seeds, so
            that the same call continues an interrupted study.

    Raises:
        GermlineError: there are no seeds, one is given twice, or one is no whole number.
    """
    config = load_config(config)
    seeds = parse_seeds(seeds) if isinstance(seeds, str) else tuple(seeds)
    if not seeds or len({*seeds}) < len(seeds) or any(type(seed) is not int for seed in seeds):
        raise GermlineError(f"seeds={seeds}: name whole numbers, each once, such as seeds=0..4")
    span = f"{seeds[0]}-{seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    name = f"{config.task.title}-{config.space.kind}-seeds-{span}"
    return SeedStudy(config, seeds, Path(out) if out is not None else Path("runs") / name)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read `0..4` (both ends included), `0,3,7` or `5`."""
    span = re.fullmatch(r"\s*(\d+)\s*\.\.\s*(\d+)\s*", text)
    if span and 0 <= int(span[2]) - int(span[1]) < MOST_SEEDS:
        return tuple(range(int(span[1]), int(span[2]) + 1))
    if re.fullmatch(r"\s*\[?\s*\d+(\s*,\s*\d+)*\s*\]?\s*", text):
        return tuple(map(int, re.findall(r"\d+", text)))
    raise GermlineError(
        f"seeds={text} is no list or range of 1 to {MOST_SEEDS} numbers: write seeds=0..4 or "
        "seeds=0,3,7"
    )


def _as_recorded(config: Config) -> Config:
    """Return a config as its runs record it: absolute paths, and the digest of a custom task."""
    config = config.with_absolute_paths()
    if isinstance(config.task, CustomTask):
        digest = getattr(make_task(config.task), "digest", None)
        section = config.task.model_copy(update={"digest": digest})
        config = config.model_copy(update={"task": section})
    return config


def _check_same_config(planned: Config, path: Path) -> None:
    """Refuse a run directory that holds a run of another config, or a longer one."""
    if not (path / "run.json").exists():
        return
    differing = _differing(planned, path)
    was, asked = differing.get("generations", (0, 0))
    if asked > was and (ending := RunDirectory.open(path).ended_by(planned)):
        raise GermlineError(
            f"{ending.setting}: the run {path} stops early, so generations={asked} would not train "
            "it on: set a larger number, or null"
        )
    others = [name for name in differing if not name.startswith(TRAINS_ON)]
    if name := "generations" if was > asked else next(iter(others), ""):
        was, asked = differing[name]
        raise GermlineError(
            f"{path} was run with another {name} ({was!r}, not {asked!r}): ask for that, or choose "
            "another folder (--out)"
        )


def _begin_or_resume(planned: Config, path: Path) -> Training | None:
    """Begin a run, or resume one that is not at the end of the planned config; else None."""
    if not (path / "run.json").exists():
        return train(planned, path)
    overrides = overrides_to_resume(planned, path)
    return None if overrides is None else resume(path, overrides)


def overrides_to_resume(planned: Config, path: Path) -> list[str] | None:
    """Return the settings with which a run is resumed; None where it is at the planned end."""
    directory = RunDirectory.open(path)
    done = directory.journal.last_generation() + 1
    if done >= planned.generations or directory.ended_by(planned):
        return None
    differing = _differing(_as_recorded(planned), path)
    asked = {name: value for name, (_, value) in differing.items()}
    # Of another kind of fleet, the settings that it does not have go with the old kind.
    kept = {name: value for name, value in asked.items() if value is not ...}
    return [as_override(name, value) for name, value in kept.items()]


def _differing(planned: Config, path: Path) -> dict[str, list[Any]]:
    """Return the settings of a run that are not as planned, each as it was and as it is asked."""
    differing = differing_settings([RunDirectory.open(path).config, planned])
    if planned.strategy.population is None:
        differing.pop("strategy.population", None)  # The strategy chose the number of members.
    return differing
