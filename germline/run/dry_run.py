"""What a training would do, without doing it: settings, shapes and memory.

Everything that a run refuses before it loads the model is refused here too. No weights are loaded
and nothing is written; of a model on the hub, only config.json is downloaded. A dataset of the hub
must be on this machine.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from germline.config import Config, Local, load_config
from germline.engines.pretrained import without_network
from germline.estimates.machine import machine_here, with_dtype
from germline.estimates.memory import Estimate, estimate
from germline.estimates.model_shape import shape_of
from germline.estimates.workload import TextLengths, text_lengths
from germline.protocols import Task
from germline.record.run_paths import choose_directory
from germline.run.build_parts import make_graders, strategy_of_run, with_population
from germline.run.model_prompts import without_overlong
from germline.run.preflight import check_custom_reward, check_memory, check_run
from germline.spaces import make_space
from germline.tasks import make_task


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
        return self.estimate is None or self.estimate.fits


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
        _check_reward(config, task)
    shape = None if config.engine.has_own_model else shape_of(config.model)
    texts = text_lengths(config, task)
    found: Estimate | None = None
    if shape is not None:
        searched = make_space(config.space, config.seed).searched_shapes(shape.tensors)
        config = with_population(config, strategy_of_run(config, sum(map(math.prod, searched))))
        found = estimate(config, shape, texts, machine_here(config))
    if isinstance(config.fleet, Local) and (found is None or found.fits):
        check_memory(config, engines=config.fleet.engines)  # an estimate says more than a refusal
    return DryRun(
        config=config,
        out=path,
        training_examples=len(task.examples("train")),
        texts=texts,
        estimate=found,
    )


def _check_reward(config: Config, task: Task) -> None:
    """Try a reward as a run does; scorers, which are services or models, are not asked."""
    section = config.task.model_copy(update={"scorers": {}})
    config = config.model_copy(update={"task": section})
    with TemporaryDirectory() as folder, make_graders(config, task) as graders:
        graders.redirect_output(Path(folder) / "graders.log")
        check_custom_reward(config, task, graders)
