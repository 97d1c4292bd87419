"""What runs take over from each other where they would compute the same bits.

**Divergences of sigmas** are kept in the user's cache for the next run, as calibrating sigma takes
minutes with a large model. A file is named by the digest of everything that a measurement depends
on. These are the starting weights, the files beside them (tokenizer, chat template), the settings
below, the prompts, the seeds of the directions, threads, processor and versions, and the code of
germline; so a run that takes one over has the journal of a run that measures. A file of `FOLDER` is
a number, in nats per token. Deleting it, or `strategy.sigma.keep=false`, measures anew. A run has
the measurements that it used in its own directory, and its sigma in the journal, so nothing else
reads these files.

**Rollouts** are shared with `record.shared`: those of the same weights, members, prompts and noise.
Before their first update, runs that differ only in the update rule (learning rate, shaping,
optimizer) or in their length generate the same. The first such run keeps what it generated, and the
others read that instead of generating it. Their journals and budgets are those of runs that
generate everything. What cannot be read is generated again. Nothing is kept in which a reward is
missing, as the next run may have it.
"""

import hashlib
import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from huggingface_hub.constants import HF_ASSETS_CACHE

import germline
from germline.config import AutoSigma
from germline.config.config_files import model_source
from germline.evaluation.kl_divergence import Keep, nothing_kept
from germline.fleet import Fleet
from germline.protocols import EpisodeTask, Task
from germline.record import RunDirectory
from germline.record.atomic_files import plain, write_atomically
from germline.registry import package_of
from germline.types import Evaluation, GermlineError

FOLDER = Path(HF_ASSETS_CACHE) / "germline" / "calibration"

COUNTED = {"rollouts", "tokens", "flops"}
"""Budgets that the center's answers count for."""

SMALL_FILES = {".json", ".jinja", ".txt", ".model"}
"""Config, tokenizer and chat template of a model."""

EVALUATES = {"model", "task", "space", "engine", "microbatch", "prompt_search"}
"""Sections that decide an evaluation, beside the machine, the code and what it is asked for."""


def kept_divergences(directory: RunDirectory, task: Task) -> Keep:
    """Return what takes over a divergence that an earlier run kept, or measures and keeps it.

    Nothing is kept where the same inputs may give other bits: of an inference engine, of engines
    on other machines, of episodes, which an environment plays, and of an engine or a space of
    another package, whose code has no digest. Under a budget of rollouts nothing is taken over
    either: the run would have more generations.
    """
    config = directory.config
    sigma = getattr(config.search, "sigma", None)
    unknown = config.engine.is_served or isinstance(task, EpisodeTask)
    unknown = unknown or any(package_of(type(one)) for one in (config.engine, config.space))
    unknown = unknown or config.fleet.is_elsewhere or not COUNTED.isdisjoint(config.budget.limits)
    if unknown or not (isinstance(sigma, AutoSigma) and sigma.keep):
        return nothing_kept
    settings = config.model_dump_json(include={"task", "space", "engine", "microbatch"})
    facts = [
        *(directory.base_digest, settings, config.strategy.unit, _digest(_files_of(config.model))),
        *machine_and_code(directory),
    ]

    def kept(inputs: object, measure: Callable[[], float]) -> tuple[float, bool]:
        name = hashlib.sha256(repr((facts, inputs)).encode()).hexdigest()[:32]
        file = FOLDER / f"{name}.json"
        with suppress(OSError, ValueError, TypeError):
            return float(json.loads(file.read_bytes())), True
        kl = measure()
        with suppress(OSError, GermlineError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, json.dumps(plain(kl)).encode())
        return kl, False

    return kept


def shared_rollouts(
    fleet: Fleet, directory: RunDirectory
) -> Callable[[Callable[[], Evaluation], object], Evaluation]:
    """Return `Fleet.shared` of a run before its first update.

    It reads an evaluation, and counts `shared_rollouts`; or makes it and keeps it.
    """
    config = directory.config
    facts = [
        *(fleet.digest(), config.search.unit, *machine_and_code(directory)),
        config.model_dump(mode="json", include=EVALUATES),
    ]
    of_run = json.dumps(facts, sort_keys=True).encode()

    def shared(make: Callable[[], Evaluation], asked: object) -> Evaluation:
        key = hashlib.sha256(of_run + pickle.dumps(asked)).hexdigest()
        file = Path(config.record.shared or "") / f"{key}.pickle"
        try:
            found: Evaluation = pickle.loads(file.read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError):  # not there, or damaged
            found = make()
            if not np.isnan(found.rewards).any():
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, pickle.dumps(found))
            return found
        fleet.counts["shared_rollouts"] += len(found.rollouts)
        return replace(found, decode_seconds=0.0)

    return shared


def _files_of(model: str) -> Iterator[Path]:
    """Yield the files of a model beside its weights, whose digest the run has."""
    from germline.engines.pretrained import local_model_folder  # it imports transformers: slow

    folder = local_model_folder(model_source(model))
    if folder is not None:
        yield from (one for one in folder.iterdir() if one.suffix in SMALL_FILES)


def machine_and_code(directory: RunDirectory) -> list[object]:
    """Return what the bits of an engine depend on, beside the config and the weights."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return [sorted(directory.environment.items()), gpu, code_digest()]


@cache
def code_digest() -> str:
    """Return the digest of the code of germline."""
    return _digest(Path(germline.__file__).parent.rglob("*.py"))


def _digest(files: Iterator[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
