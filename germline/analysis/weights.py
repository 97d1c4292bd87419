"""The weights of a run, a model folder, a PEFT adapter or a loaded model, read piece by piece.

Files are mapped into memory for one read at a time. The weights of a run or an adapter are rebuilt
by its engine, those of a run from a snapshot or from the journal alone; what they change is then
kept in a file of the analysis, so that several are compared without several models in memory.
"""

import hashlib
import json
import math
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from germline.config import load_config
from germline.config.config_files import model_source
from germline.engines.checkpoint_files import FLOATS
from germline.engines.master_weights import Masters
from germline.engines.model_tensors import root_digest, tensor_digests
from germline.engines.pretrained import local_model_folder
from germline.protocols import Engine
from germline.record import RunDirectory
from germline.record.atomic_files import atomic_replace
from germline.record.run_paths import check_source
from germline.run.weights import (
    adapter_settings,
    generation_of_source,
    load_engine,
    load_single_model,
    newest_generation,
)
from germline.spaces.peft_files import CONFIG, TENSORS, is_adapter
from germline.types import GermlineError

Source = str | Path | nn.Module
"""A run directory, the folder of a model or of a PEFT adapter, a hub id, or a loaded model."""

Generation = int | Literal["best"] | None

Shape = tuple[int, ...]

CHUNK = 1 << 23
"""Numbers read at once, of all sources together: 32 MB in fp32."""


@dataclass(eq=False)
class Weights:
    """All tensors of a model, by the names that its Hugging Face model has for them.

    Attributes:
        label: names the source, and the generation where it was asked for.
        shapes: by name, sorted.
        files: that hold them, by name.
        path: the folder of a model or an adapter.
        identity: what decides the values, for results that are kept; new for a loaded model.
        start: the weights that training began with; None where the source does not say.
        base: the model that an adapter is added to, or else the start; None: these weights.
        units: of a run, by name, what sigma and learning rate are multiples of.
        directory: of a run.
        generation: of a run, the last update that is included.
    """

    label: str
    shapes: Mapping[str, Shape]
    files: Mapping[str, Path]
    path: Path | None = None
    identity: Sequence[Any] = field(default_factory=lambda: [uuid.uuid4().hex])
    start: "Weights | None" = None
    base: "Weights | None" = None
    units: Mapping[str, float] = field(default_factory=dict)
    directory: RunDirectory | None = None
    generation: int = -1

    def read(self, name: str, first: int = 0, end: int | None = None) -> Tensor:
        """Read the rows `[first:end]` of a tensor as fp32 on the CPU."""
        # Opened for each read, as the pages of a mapped file count as memory of this process.
        with _opened(self.files[name]) as file:
            return file.get_slice(name)[first:end].float()

    @cached_property
    def digest(self) -> str:
        """The digest of all tensors, sorted by name; each is read once."""
        return root_digest(tensor_digests({name: self.read(name)})[name] for name in self.shapes)


def open_weights(source: Source, generation: Generation = None, *, folder: Path) -> Weights:
    """Open the weights of a source.

    Args:
        source: see `Source`.
        generation: of a run: the last update to include, -1 for the start, or `best`: that before
            the best held-out score; default: the newest that can be rebuilt.
        folder: where rebuilt weights are kept; those that are there are used again.

    Raises:
        GermlineError: the source cannot be read, is quantized, or has no such generation.
    """
    if isinstance(source, nn.Module):
        return _loaded(source, folder)
    path = Path(model_source(str(source)))
    check_source(path)
    directory = RunDirectory.open(path) if (path / "run.json").exists() else None
    last = generation_of_source(str(source), directory, generation)
    if directory is not None:
        return _open_run(directory, last, folder)
    if is_adapter(path):
        return _open_adapter(str(source), path, folder)
    return _open_folder(str(source), path)


def pieces(sources: Sequence[Weights], name: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the values of a tensor at the start and now, `[sources, numbers]`, piece by piece."""
    shape = sources[0].shapes[name]
    step = max(1, CHUNK // len(sources) // max(1, math.prod(shape[1:])))
    for first in range(0, shape[0], step):
        read = [
            [one.read(name, first, first + step).flatten() for one in some if one]
            for some in ([one.start for one in sources], sources)
        ]
        yield torch.stack(read[0]), torch.stack(read[1])


def check_same_start(sources: Sequence[Weights]) -> None:
    """Refuse sources of which training began with different models: deltas would not compare."""
    first = sources[0].base or sources[0]
    for one in sources[1:]:
        base = one.base or one
        if base.identity != first.identity and base.digest != first.digest:
            raise GermlineError(
                f"analyze: {sources[0].label} began with weights of digest {first.digest[:16]} "
                f"({first.label}), and {one.label} with {base.digest[:16]} ({base.label}): "
                "compare runs of one start model"
            )


def shared_names(models: Sequence[Weights]) -> list[str]:
    """Return the tensors that all models have, sorted by name; refuse tensors of other shapes."""
    first = models[0]
    names = sorted(set.intersection(*({*one.shapes} for one in models)))
    for one in models:
        for name in names:
            if one.shapes[name] != first.shapes[name]:
                raise GermlineError(
                    f"analyze: {name} has shape {list(one.shapes[name])} in {one.label}, and "
                    f"{list(first.shapes[name])} in {first.label}: compare models of one "
                    "architecture"
                )
    if not names:
        labels = ", ".join(dict.fromkeys(one.label for one in models))
        raise GermlineError(
            f"analyze: no tensor is in all of {labels}: compare models of one architecture"
        )
    return names


def _loaded(model: nn.Module, folder: Path) -> Weights:
    name = Path(str(getattr(model, "name_or_path", ""))).name or type(model).__name__
    tensors = {name: one.detach().cpu().contiguous() for name, one in model.named_parameters()}
    path = folder / f"{uuid.uuid4().hex}.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    return _from_files(name, [path])


def _open_folder(label: str, path: Path) -> Weights:
    folder = local_model_folder(str(path))
    if folder is None or path.suffix == ".gguf":
        found = "is a file" if path.is_file() else "was not found on this machine"
        raise GermlineError(
            f"analyze: {label} {found}: name a run, an adapter or a folder of safetensors files; "
            "download a model of the hub first"
        )
    config = folder / "config.json"
    if config.exists() and json.loads(config.read_bytes()).get("quantization_config"):
        raise _quantized(label)
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.exists():
        shards = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        files = [folder / name for name in shards]
    if not files:
        raise GermlineError(
            f"analyze: {label} has no safetensors files: write it again with save_pretrained"
        )
    weights = _from_files(label, files)
    weights.path, weights.identity = folder, _stats(files)
    return weights


def _from_files(label: str, files: Iterable[Path]) -> Weights:
    """Return the tensors of files, of which later ones replace those of earlier ones."""
    places: dict[str, Path] = {}
    shapes: dict[str, Shape] = {}
    for path in files:
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                tensor = file.get_slice(name)
                shape, is_float = tuple(tensor.get_shape()), tensor.get_dtype() in FLOATS
                if name.endswith("weight") and len(shape) > 1 and not is_float:
                    raise _quantized(label)
                if is_float and shape:
                    places[name], shapes[name] = path, shape

    return Weights(label, dict(sorted(shapes.items())), places)


def _open_adapter(label: str, path: Path, folder: Path) -> Weights:
    settings = adapter_settings(path)
    try:
        model = open_weights(settings["model"], folder=folder)
        known = [_stats([path / CONFIG, path / TENSORS])]
        load = partial(load_engine, None, load_config(settings))
        weights = _rebuilt(label, known, model, folder, load)
    except GermlineError as error:
        name = settings["model"]
        raise GermlineError(f"analyze: {label} is an adapter of {name}: {error}") from None
    weights.path, weights.start, weights.base = path, model, model
    return weights


def _open_run(directory: RunDirectory, generation: int | None, folder: Path) -> Weights:
    path, config = directory.path, directory.config
    label = str(path) if generation is None else f"{path}@{generation}"
    model: Weights | None = None
    with suppress(GermlineError):  # without safetensors files, all its tensors are kept
        model = _open_folder(config.model, Path(model_source(config.model)).expanduser())

    def rebuilt(label: str, last: int, load: Callable[..., Engine]) -> Weights:
        entries = directory.journal.read(last + 1)
        digest = entries[-1].digest if entries else directory.base_digest
        load = partial(load, directory, generates=False, generation=last)
        return _rebuilt(label, [str(path.resolve()), last, digest], model, folder, load)

    last = newest_generation(directory) if generation is None else generation
    weights = rebuilt(label, last, load_single_model)  # of an ensemble, its best member
    if model is not None and {*model.shapes} != {*weights.shapes}:
        model = None
    is_plain = config.space.kind in ("full", "low_rank") and not directory.ancestors
    start = model if model and is_plain else rebuilt(f"{path}@-1", -1, load_engine)
    continued = directory.ancestors or getattr(config.space, "init_adapter", None)
    weights.start, weights.base = start, start if continued else model or start
    weights.directory, weights.generation = directory, last
    return weights


def _rebuilt(
    label: str,
    known: Sequence[Any],
    model: Weights | None,
    folder: Path,
    load: Callable[[], Engine],
) -> Weights:
    """Return the weights of an engine, which loads them unless a call before has kept them.

    What they change is kept in a file, named by what is `known` of them, and read over the files of
    the model; if the model has other names, or is not known, all tensors are kept.
    """
    question = json.dumps([known, model and model.identity])
    path = folder / f"{hashlib.sha256(question.encode()).hexdigest()[:16]}.safetensors"
    if not path.exists():
        masters = cast("Masters", load().weights)
        tensors = masters.merged_tensors()
        changed = {one.name for one in (*masters.changed_weights(), *masters.adapted)}
        if model is None or not changed <= {*model.shapes}:
            changed = {*tensors}
        kept = {name: tensors[name].detach().float().cpu().contiguous() for name in changed}
        unfinished = path.with_suffix(f".{os.getpid()}.partial")
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_replace(path, unfinished):
            save_file(kept, unfinished, metadata={"units": json.dumps(masters.units)})
    weights = _from_files(label, [path])
    if model is not None and {*weights.shapes} <= {*model.shapes}:
        weights = _from_files(label, [*dict.fromkeys(model.files.values()), path])
    with _opened(path) as file:
        weights.units = json.loads(file.metadata()["units"])
    weights.identity = [path.name]
    return weights


def _stats(files: Sequence[Path]) -> list[Any]:
    stats = [(str(file.resolve()), file.stat()) for file in files]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise GermlineError(
            f"analyze: {path} cannot be read ({error}): download or write the model again"
        ) from None


def _quantized(label: str) -> GermlineError:
    return GermlineError(
        f"analyze: {label} is quantized, so the difference of its weights is that of the rounding: "
        "give the float model it was made from"
    )
