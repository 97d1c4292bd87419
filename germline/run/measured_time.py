"""The time of a run, from short trainings of its config on this machine.

A generation takes a fixed time and a time for every completion that is generated. The smallest
training that is worth a run measures both together; where it is quick, a second one with more
completions tells them apart.
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

SMALL, LARGER = (16, 4), (64, 8)
"""Members and examples of the trainings."""

QUICK_S = 2.0
"""Seconds of a small generation, below which the larger training is worth its time."""

PARTS_OF_OTHERS = ("generate_s", "held_out_s")
"""Times in a row that are a part of another one, or not of the generation."""


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


def measure_time(config: Config) -> MeasuredTime:
    """Train for two generations, of which the first one warms up, with few completions."""
    start_s, small_s = _trained(config, *SMALL)
    few, more = (math.prod(size) for size in (SMALL, LARGER))
    each = small_s / few
    if small_s < QUICK_S:
        _, larger_s = _trained(config, *LARGER)
        each = min(each, max(0.0, larger_s - small_s) / (more - few))
    return MeasuredTime(start_s, small_s - few * each, each)


def _trained(config: Config, population: int, examples: int) -> tuple[float, float]:
    """Return the seconds outside of the generations of a training, and of its last generation."""
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
    seconds = [
        sum(laps for part, laps in row["timing"].items() if part not in PARTS_OF_OTHERS)
        for row in rows
    ]
    return wall_s - sum(seconds), seconds[-1]
