"""The time of a run, from short trainings of its config on this machine.

A generation takes a fixed time and a time for every completion that is generated, which is shorter
in a larger batch. Two trainings with different numbers of completions tell them apart, by processor
time, as the load of other programs may change in between; the time by the clock is the same number
of times longer that it was in both. A run takes over the divergences that the short trainings
measured to calibrate sigma.
"""

import math
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from germline.config import Config, load_config
from germline.config.config_files import as_yaml
from germline.record import RunDirectory
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


@dataclass(frozen=True)
class ShortTraining:
    """Times of a training in seconds: outside of its generations, and of its last generation."""

    start_s: float
    wall_s: float
    cpu_s: float


def measure_time(config: Config, limit_s: float) -> MeasuredTime:
    """Train twice for two generations, of which the first one warms up.

    Where the second training would take too much of the limit, the time of a generation is taken to
    be proportional to its completions, which is too long.
    """
    small = _trained(config, *SMALL)
    few, size = math.prod(SMALL), LARGE if small.cpu_s < QUICK_S else LARGER
    many = math.prod(size)
    cpu_s, load = small.cpu_s / few, small.wall_s / small.cpu_s
    if 2 * many / few * small.wall_s <= MOST_SHARE * limit_s:
        large = _trained(config, *size)
        cpu_s = min(cpu_s, max(0.0, large.cpu_s - small.cpu_s) / (many - few))
        load = (small.wall_s + large.wall_s) / (small.cpu_s + large.cpu_s)
    return MeasuredTime(small.start_s, load * (small.cpu_s - few * cpu_s), load * cpu_s)


def _trained(config: Config, population: int, examples: int) -> ShortTraining:
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
    budgets = [row["budget"] for row in rows]
    last = {name: budgets[-1][name] - budgets[0][name] for name in ("wall_s", "cpu_s")}
    start_s = wall_s - budgets[-1]["wall_s"]  # without the calibration of sigma
    return ShortTraining(start_s, last["wall_s"], max(last["cpu_s"], CLOCK_S))
