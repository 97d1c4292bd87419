"""What a training would do, without doing it: settings, shapes and memory; and its time.

Everything that a run refuses before it loads the model is refused here too. No weights are loaded
and nothing is written; of a model on the hub, only config.json is downloaded. A dataset of the hub
must be on this machine.

The time is that of short trainings of the config on this machine. A generation takes a fixed time
and a time for every completion that is generated, which is shorter in a larger batch. Two trainings
with different numbers of completions tell them apart, by processor time, as the load of other
programs may change in between; the time by the clock is the same number of times longer that it was
in both. A run takes over the divergences that the short trainings measured to calibrate sigma.
"""

import math
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from germline.config import Config, Local, load_config
from germline.config.config_files import as_yaml
from germline.engines.pretrained import without_network
from germline.estimates.machine import machine_here, with_dtype
from germline.estimates.memory import Estimate, estimate
from germline.estimates.sizes import TextLengths, shape_of, text_lengths
from germline.record import RunDirectory
from germline.record.run_paths import choose_directory
from germline.run.build_parts import make_graders, strategy_of_run, with_population
from germline.run.model_prompts import without_overlong
from germline.run.preflight import check_custom_reward, check_memory, check_run
from germline.spaces import make_space
from germline.tasks import make_task
from germline.types import GermlineError

SMALL, LARGER, LARGE = (16, 4), (32, 8), (64, 8)
"""Members and examples of the first training, of the second one, and of that of a quick model."""

QUICK_S = 0.5
"""Processor time of a small generation, up to which a model is quick."""

CLOCK_S = 0.01
"""Resolution of processor time."""

MOST_SHARE = 0.15
"""Share of the time of the run that the second training may take."""


@dataclass(frozen=True)
class DryRun:
    """What a training would do."""

    config: Config
    out: Path
    training_examples: int
    texts: TextLengths
    estimate: Estimate | None

    @property
    def fits(self) -> bool:
        """Whether memory is estimated to suffice."""
        return self.estimate is None or self.estimate.lacking is None


def dry_run(
    config: Config | Mapping[str, Any] | Path | str, out: Path | str | None = None
) -> DryRun:
    """Return what `train` would do with the same arguments, without writing anything.

    Args:
        config: a Config, a mapping of settings, or the path of a YAML file.
        out: the run directory; by default a new one under `runs/`.

    Raises:
        GermlineError: the run would be refused, or the model's config.json cannot be read.
    """
    config = with_dtype(load_config(config).with_absolute_paths())
    path = choose_directory(config, None if out is None else Path(out))
    with without_network():
        task = without_overlong(config, make_task(config.task))
        check_run(config, task)
        # The reward is tried as a run does; scorers, which are services or models, are not asked.
        section = config.task.model_copy(update={"scorers": {}})
        quick = config.model_copy(update={"task": section})
        with TemporaryDirectory() as folder, make_graders(quick, task) as graders:
            graders.redirect_output(Path(folder) / "graders.log")
            check_custom_reward(quick, task, graders)
    shape = None if config.engine.has_own_model else shape_of(config.model)
    texts = text_lengths(config, task)
    found: Estimate | None = None
    if shape is not None:
        searched = make_space(config.space, config.seed).searched_shapes(shape.tensors)
        config = with_population(config, strategy_of_run(config, sum(map(math.prod, searched))))
        found = estimate(config, shape, texts, machine_here(config))
    if isinstance(config.fleet, Local) and (found is None or found.lacking is None):
        check_memory(config, engines=config.fleet.engines)  # an estimate says more than a refusal
    return DryRun(
        config=config,
        out=path,
        training_examples=len(task.examples("train")),
        texts=texts,
        estimate=found,
    )


@dataclass(frozen=True)
class MeasuredTime:
    """The parts of the time of a run, in seconds."""

    start_s: float
    generation_s: float
    completion_s: float

    def run_s(self, config: Config) -> float:
        """Return the seconds of a run of a config of the same model and task."""
        population = config.strategy.population or SMALL[0]
        completions = config.method.generated_rows(population) * config.batch_size
        scores = 1 + math.ceil(config.generations / config.held_out.every)
        held_out = scores * config.held_out.examples * self.completion_s
        generation = self.generation_s + completions * self.completion_s
        return self.start_s + config.generations * generation + held_out


def measure_time(config: Config, limit_s: float) -> MeasuredTime:
    """Train twice for two generations, of which the first one warms up.

    Where the second training would take too much of the limit, the time of a generation is taken to
    be proportional to its completions, which is too long.
    """
    start_s, small_wall_s, small_cpu_s = _trained(config, *SMALL)
    few, size = math.prod(SMALL), LARGE if small_cpu_s < QUICK_S else LARGER
    many = math.prod(size)
    cpu_s, load = small_cpu_s / few, small_wall_s / small_cpu_s
    if 2 * many / few * small_wall_s <= MOST_SHARE * limit_s:
        _, large_wall_s, large_cpu_s = _trained(config, *size)
        cpu_s = min(cpu_s, max(0.0, large_cpu_s - small_cpu_s) / (many - few))
        load = (small_wall_s + large_wall_s) / (small_cpu_s + large_cpu_s)
    return MeasuredTime(start_s, load * (small_cpu_s - few * cpu_s), load * cpu_s)


def _trained(config: Config, population: int, examples: int) -> tuple[float, float, float]:
    """Train; return seconds outside of generations, and by both clocks of the last generation."""
    sizes = (
        f"strategy.population={population}",
        f"batch_size={examples}",
        "generations=2",
        "held_out.every=2",
        "held_out.examples=1",
    )
    short = load_config(config.with_absolute_paths().model_dump(mode="json"), list(sizes))
    with TemporaryDirectory() as folder:
        file, out = Path(folder) / "config.yaml", Path(folder) / "run"
        file.write_text(as_yaml(short.model_dump(mode="json")), encoding="utf-8")
        command = [sys.executable, "-m", "germline", "train", str(file), "--out", str(out)]
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wall_s = time.perf_counter() - begun
        if done.returncode:
            raise GermlineError(f"new: a short training failed: {done.stderr.strip()}")
        rows = RunDirectory.open(out).generations()
    first, last = (row["budget"] for row in rows)
    wall, cpu = (last[name] - first[name] for name in ("wall_s", "cpu_s"))
    return wall_s - last["wall_s"], wall, max(cpu, CLOCK_S)  # the start without a calibration
