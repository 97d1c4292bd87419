"""A machine whose speed is that of a short training of a config: its model, task and graders.

Estimates from the rates of single operations assume texts of full length and know neither imports
nor the report. A training of `OVERRIDES` measures by which factor its generations differ from their
estimate, and the seconds outside of generations.
"""

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from germline.config import Config, load_config
from germline.config.file_paths import with_absolute_paths
from germline.estimates.estimate import estimate
from germline.estimates.hardware import Hardware
from germline.estimates.here import texts_here
from germline.estimates.model_shape import ModelShape
from germline.record import RunDirectory
from germline.types import GermlineError

OVERRIDES = (
    "strategy.population=4",
    "strategy.sigma=1e-4",
    "strategy.learning_rate=1e-6",
    "batch_size=4",
    "generations=2",
    "held_out.every=2",
    "held_out.examples=1",
)
"""So few rows that a model of 135 M weights takes seconds on two cores."""


NO_PARTS = ("generate_s", "held_out_s")
"""Times in a row that are a part of another one, or not of the generation."""


def measured_machine(config: Config, shape: ModelShape, machine: Hardware) -> Hardware:
    """Train for two generations, of which the first one warms up, and correct the machine by it.

    Raises:
        GermlineError: the training fails.
    """
    short = load_config(with_absolute_paths(config).model_dump(mode="json"), list(OVERRIDES))
    with TemporaryDirectory() as folder:
        file, out = Path(folder) / "config.yaml", Path(folder) / "run"
        file.write_text(yaml.safe_dump(short.model_dump(mode="json")), encoding="utf-8")
        command = [sys.executable, "-m", "germline", "train", str(file), "--out", str(out)]
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wall = time.perf_counter() - begun
        if done.returncode:
            raise GermlineError(f"new config: a short training failed: {done.stderr.strip()}")
        rows = RunDirectory.open(out).generations()
    seconds = [
        sum(laps for part, laps in row["timing"].items() if part not in NO_PARTS) for row in rows
    ]
    estimated = estimate(short, shape, texts_here(short), machine).seconds.total
    return machine.corrected(seconds[-1] / estimated, wall - sum(seconds))
