"""What a training would do, without doing it: settings, shapes, memory, time, downloads and files.

Everything that a run refuses before it loads the model is refused here too. The network is not
used, no weights are loaded and nothing is written. Memory and time are those of
`germline.estimates`: all texts run to their full length, and loading and snapshots are not counted.
"""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from germline.config import Config, load_config
from germline.config.file_paths import with_absolute_paths
from germline.config.tasks import Dataset
from germline.engines.hub_access import without_network
from germline.estimates.estimate import Estimate, estimate, what_fits
from germline.estimates.hardware import Clock
from germline.estimates.here import machine_here, texts_here
from germline.estimates.local_files import (
    Found,
    Source,
    local_model_folder,
    model_source,
)
from germline.estimates.model_shape import ModelShape, classifier_shape_of, shape_of
from germline.estimates.popular_model_configs import PUBLISHED
from germline.estimates.scorer_memory import classifiers
from germline.estimates.workload import POPULATION, TextLengths
from germline.protocols import Task
from germline.record.metrics_rows import MAX_SAMPLES
from germline.record.new_directory import choose_directory
from germline.record.run_directory import run_facts
from germline.run.build_parts import make_graders, with_population
from germline.run.resource_checks import GUESSED_TOKENS, check_disk
from germline.run.reward_check import check_custom_reward
from germline.run.run_checks import check_fleet_memory, check_run
from germline.run.snapshot_policy import snapshot_size, snapshots_to_keep
from germline.run.validate_args import validate_path
from germline.spaces import make_space
from germline.strategies import make_strategy
from germline.tasks import make_task
from germline.tasks.dataset_library import may_be_on_hub
from germline.types import GermlineError

CHARACTERS_PER_TOKEN = 4
"""Usual for English text."""

NUMBER_BYTES, JOURNAL_LINE_BYTES, GENERATION_ROW_BYTES, ROLLOUT_ROW_BYTES, EVENT_BYTES = (
    20,
    250,
    1500,
    200,
    1300,
)
"""Of a coefficient with all its digits, of the rest of a journal line, of a row, of what is around
the texts of a rollout, and of the TensorBoard events of a generation: measured on small runs."""

SCORE_ROW_BYTES, FIGURE_BYTES, REPORT_BYTES, REPORT_GENERATION_BYTES = 250, 110_000, 60_000, 300
"""Likewise of a held-out score, of evolution.png, and of report.html: fixed, and per generation."""


TOY_NUMBERS = 800
"""About as many numbers the toy engine searches."""


@dataclass(frozen=True)
class PlannedFile:
    """A file or folder that a run would write, and its approximate size at the end."""

    name: str
    bytes: int
    meaning: str


@dataclass(frozen=True)
class DryRun:
    """What a training would do.

    Attributes:
        config: as the run would record it.
        out: the run directory that would be made.
        training_examples: of the task; None where its dataset is still to be downloaded.
        held_out_examples: of a held-out score; None likewise.
        texts: lengths of prompts and completions.
        estimate: memory and time of a generation; None for an engine with a model of its own.
        fits_with: settings with which it would fit; empty where it fits, or where none would do.
        sources: what the run reads, and whether it would be downloaded.
        files: what the run would write.
    """

    config: Config
    out: Path
    training_examples: int | None
    held_out_examples: int | None
    texts: TextLengths
    estimate: Estimate | None
    fits_with: tuple[str, ...]
    sources: tuple[Source, ...]
    files: tuple[PlannedFile, ...]

    @property
    def fits(self) -> bool:
        """Whether memory is estimated to suffice."""
        return self.estimate is None or self.estimate.fits

    @property
    def written_bytes(self) -> int:
        """Approximate size of the finished run directory."""
        return sum(one.bytes for one in self.files)


def dry_run(
    config: Config | Mapping[str, Any] | Path | str,
    out: Path | str | None = None,
    clock: Clock = time.perf_counter,
) -> DryRun:
    """Return what `train` would do with the same arguments, without the network and any writing.

    Args:
        config: a Config, a mapping of settings, or the path of a YAML file.
        out: the run directory; by default a new one under `runs/`.
        clock: measures the speed of this machine where it is a CPU.

    Raises:
        GermlineError: the run would be refused, or the model's config.json is not on this machine.
    """
    settings = config if isinstance(config, Config) else load_config(config)
    with without_network():
        return _dry_run(with_absolute_paths(settings), out, clock)


def _dry_run(config: Config, out: Path | str | None, clock: Clock) -> DryRun:
    path = choose_directory(config, None if out is None else validate_path("out", out))
    check_disk(config, path)
    task = _local_task(config)
    check_run(config, task)
    if task is not None:
        _check_reward(config, task)
    for setting, scorer in classifiers(config):
        _check_local(scorer.model, f"{setting}.model")
    shape = None if config.engine.has_own_model else _local_shape(config.model)
    if shape is not None:
        config = _with_population(config, shape)
    texts = _guessed_texts(config) if task is None else texts_here(config, task)
    found: Estimate | None = None
    remedy: tuple[str, ...] = ()
    if shape is not None:
        machine = machine_here(config, shape, clock)
        found = estimate(config, shape, texts, machine)
        remedy = () if found.fits else what_fits(config, shape, texts, machine)
    if found is None or found.fits:  # else the estimate says more than a refusal
        check_fleet_memory(config)
    return DryRun(
        config=config,
        out=path,
        training_examples=None if task is None else len(task.examples("train")),
        held_out_examples=None if task is None else texts.held_out,
        texts=texts,
        estimate=found,
        fits_with=remedy,
        sources=_sources(config, shape, is_local=task is not None),
        files=_files(config, texts, found),
    )


def _local_task(config: Config) -> Task | None:
    """Make the task; None if its dataset has to be downloaded first."""
    try:
        return make_task(config.task)
    except GermlineError:
        if isinstance(config.task, Dataset) and _is_on_hub(config.task.path):
            return None
        raise


def _check_reward(config: Config, task: Task) -> None:
    """Try a reward as a run does; scorers, which are services or models, are not asked.

    Raises:
        GermlineError: the reward fails on every answer that is tried.
    """
    section = config.task.model_copy(update={"scorers": {}})
    config = config.model_copy(update={"task": section})
    with TemporaryDirectory() as folder, make_graders(config, task) as graders:
        graders.redirect_output(Path(folder) / "graders.log")
        check_custom_reward(config, task, graders)


def _is_on_hub(path: Path) -> bool:
    return not path.expanduser().exists() and may_be_on_hub(path)


def _local_shape(source: str) -> ModelShape:
    """Read the sizes of a model without the network.

    Raises:
        GermlineError: its config.json is not on this machine.
    """
    if source in PUBLISHED and local_model_folder(source) is None:
        return shape_of(source)
    folder = _check_local(source, "model")
    return shape_of(source if source == "nano" else str(folder))


def _check_local(source: str, setting: str) -> Path:
    """Return the folder of a model on this machine.

    Raises:
        GermlineError: its config.json is not on this machine.
    """
    folder = local_model_folder(source)
    if folder is None:
        raise GermlineError(
            f"{setting}: config.json of {source!r} is not on this machine, and a dry run does not "
            f"use the network: `hf download {source} config.json` gets it"
        )
    return folder


def _with_population(config: Config, shape: ModelShape) -> Config:
    """Write down how many members there are where that is left to the strategy."""
    searched = make_space(config.space, config.seed).searched_shapes(shape.tensors)
    strategy = make_strategy(
        config.search,
        run_seed=config.seed,
        generations=config.generations,
        dimension=sum(math.prod(one) for one in searched),
    )
    return with_population(config, strategy)


def _guessed_texts(config: Config) -> TextLengths:
    """Return the lengths of texts whose dataset is not here."""
    new_tokens = config.task.max_new_tokens or GUESSED_TOKENS
    return TextLengths(config.batch_size, GUESSED_TOKENS, 0, new_tokens, config.held_out.examples)


def _sources(config: Config, shape: ModelShape | None, *, is_local: bool) -> tuple[Source, ...]:
    sources = [] if shape is None else [model_source(config.model, shape)]
    for setting, scorer in classifiers(config):
        of_scorer = classifier_shape_of(scorer.model, f"{setting}.model")
        sources.append(replace(model_source(scorer.model, of_scorer), what="scorer"))
    if isinstance(config.task, Dataset):
        path = config.task.path.expanduser()
        found: Found = "folder" if path.exists() else "cache" if is_local else "download"
        size = path.stat().st_size if path.is_file() else None
        sources.append(Source("dataset", str(config.task.path), found, size))
    return tuple(sources)


def _files(config: Config, texts: TextLengths, found: Estimate | None) -> tuple[PlannedFile, ...]:
    """List what a run writes, in the order of docs/run-directory.md."""
    record, generations = config.record, config.generations
    members = config.strategy.population or POPULATION
    directions = members // 2 if getattr(config.strategy, "antithetic", False) else members
    text = CHARACTERS_PER_TOKEN * (texts.prompt + texts.new_tokens)
    rollouts = min(record.rollouts, config.method.generated_rows(members) * texts.examples)
    scores = 1 + -(-generations // config.held_out.every)
    samples = 2 * min(MAX_SAMPLES, texts.held_out) * (text + ROLLOUT_ROW_BYTES)
    facts = run_facts(config, "0" * 64, threads=1)
    files = [
        PlannedFile("run.json", len(json.dumps(facts, indent=2)) + 1, "config and versions"),
        PlannedFile(
            "journal.jsonl",
            generations * (JOURNAL_LINE_BYTES + NUMBER_BYTES * directions),
            "one line per generation, from which weights are rebuilt",
        ),
        PlannedFile("generations.jsonl", generations * GENERATION_ROW_BYTES, "metrics"),
        PlannedFile(
            "rollouts.jsonl",
            generations * rollouts * (text + ROLLOUT_ROW_BYTES),
            f"{rollouts} rollouts per generation",
        ),
        PlannedFile(
            "held_out.jsonl",
            scores * (SCORE_ROW_BYTES + NUMBER_BYTES // 4 * texts.held_out) + samples,
            f"{scores} held-out scores",
        ),
        *_snapshots(config, found),
        PlannedFile("evolution.png", FIGURE_BYTES, "figure"),
        PlannedFile(
            "report.html",
            REPORT_BYTES + REPORT_GENERATION_BYTES * generations + samples,
            "report, at the end",
        ),
    ]
    if hasattr(config.method, "ensemble_size"):
        files.append(PlannedFile("ensemble.json", 100 * config.method.ensemble_size, "who votes"))
    if record.tensorboard:
        files.append(PlannedFile("tensorboard/", EVENT_BYTES * generations, "TensorBoard events"))
    return tuple(files)


def _snapshots(config: Config, found: Estimate | None) -> list[PlannedFile]:
    numbers = TOY_NUMBERS if found is None else found.work.searched
    size = snapshot_size(config, numbers)
    due = -(-config.generations // config.record.snapshot_every)
    kept = min(due, snapshots_to_keep(config, numbers))
    meaning = f"{kept} kept at the end; a further one while the newest is written"
    return [PlannedFile("snapshots/", size * kept, meaning)] if kept else []
