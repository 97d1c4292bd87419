"""The weights of a run, a model folder, a PEFT adapter or a loaded model, read piece by piece.

Files are mapped into memory for one read at a time. An adapter is merged as its weights are read:
W + alpha / r * B A. The weights of a run are rebuilt by its engine, from a snapshot or from the
journal alone; what the run changed is then kept in a file of the analysis, so that the weights of
several runs are compared without several models in memory.
"""

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from germline.engines.checkpoint_files import FLOATS
from germline.engines.master_weights import Masters
from germline.engines.model_tensors import root_digest, tensor_digests
from germline.engines.pretrained import local_model_folder
from germline.nano import model_source
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
from germline.spaces.peft_files import CONFIG, TENSORS, StoredAdapter, is_adapter, read_adapter
from germline.types import GermlineError

Source = str | Path | nn.Module
"""A run directory, the folder of a model or of a PEFT adapter, a hub id, or a loaded model."""

Generation = int | Literal["best"] | None

Shape = tuple[int, ...]

CHUNK = 1 << 24
"""Numbers read at once of each source: 64 MB in fp32."""


@dataclass(eq=False)
class Weights:
    """All tensors of a model, by the names that its Hugging Face model has for them.

    Attributes:
        label: names the source, and the generation where it was asked for.
        shapes: by name, sorted.
        rows: reads `tensor[first:end]` as fp32 on the CPU, given name, first and end.
        start: the weights that training began with; None where the source does not say.
        base: the model that an adapter is added to, or else the start; None: these weights.
        files: that determine it; empty for a run and for a loaded model.
        identity: what decides the values, for results that are kept; new for a loaded model.
        units: of a run, by name, what sigma and learning rate are multiples of.
        directory: of a run.
        generation: of a run, the last update that is included.
    """

    label: str
    shapes: Mapping[str, Shape]
    rows: Callable[[str, int, int], Tensor]
    start: "Weights | None" = None
    base: "Weights | None" = None
    files: Sequence[Path] = ()
    identity: Sequence[Any] = field(default_factory=lambda: [uuid.uuid4().hex])
    units: Mapping[str, float] = field(default_factory=dict)
    directory: RunDirectory | None = None
    generation: int = -1

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tensors, sorted."""
        return tuple(self.shapes)

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor, without reading it."""
        return self.shapes[name]

    def read(self, name: str) -> Tensor:
        """Read a tensor as fp32 on the CPU."""
        return self.rows(name, 0, self.shapes[name][0])

    @cached_property
    def digest(self) -> str:
        """The digest of all tensors, sorted by name; each is read once."""
        return root_digest(tensor_digests({name: self.read(name)})[name] for name in self.names)


def open_weights(source: Source, generation: Generation = None, *, folder: Path) -> Weights:
    """Open the weights of a source.

    Args:
        source: see `Source`.
        generation: of a run: the last update to include, -1 for the start, or `best`: that before
            the best held-out score; default: the newest that can be rebuilt.
        folder: where the rebuilt weights of runs are kept; those that are there are used again.

    Raises:
        GermlineError: the source cannot be read, is quantized, or has no such generation.
    """
    if isinstance(source, nn.Module):
        return _loaded(source)
    path = Path(model_source(str(source)))
    check_source(path)
    directory = RunDirectory.open(path) if (path / "run.json").exists() else None
    last = generation_of_source(str(source), directory, generation)
    if directory is not None:
        return _open_run(directory, last, folder)
    if not is_adapter(path):
        return _open_folder(str(source), path)
    name = str(adapter_settings(path)["model"])
    try:
        return _merged(read_adapter(path), open_weights(name, folder=folder), str(source))
    except GermlineError as error:
        raise GermlineError(f"analyze: {source} is an adapter of {name}: {error}") from None


def row_ranges(shape: Shape, numbers: int = CHUNK) -> Iterator[tuple[int, int]]:
    """Yield first and last row (exclusive) of pieces of at most so many numbers, or of one row."""
    step = max(1, numbers // max(1, torch.Size(shape[1:]).numel()))
    for first in range(0, shape[0], step):
        yield first, min(shape[0], first + step)


def check_same_start(sources: Sequence[Weights]) -> None:
    """Refuse sources of which training began with different models: deltas would not compare."""
    first = sources[0].base or sources[0]
    for one in sources[1:]:
        base = one.base or one
        if base is first or (base.files and base.files == first.files):
            continue
        if base.digest != first.digest:
            raise GermlineError(
                f"analyze: {sources[0].label} began with weights of digest {first.digest[:16]} "
                f"({first.label}), and {one.label} with {base.digest[:16]} ({base.label}): "
                "compare runs of one start model"
            )


def shared_names(weights: Weights, start: Weights) -> list[str]:
    """Return the tensors that both have, sorted by name; refuse tensors of other shapes."""
    names = [name for name in start.names if name in weights.shapes]
    for name in names:
        if weights.shape(name) != start.shape(name):
            raise GermlineError(
                f"analyze: {name} has shape {list(weights.shape(name))} in {weights.label}, and "
                f"{list(start.shape(name))} in {start.label}: compare models of one architecture"
            )
    if not names:
        raise GermlineError(
            f"analyze: {weights.label} and {start.label} have no tensor of the same name: compare "
            "models of one architecture"
        )
    return names


def _loaded(model: nn.Module) -> Weights:
    tensors = {n: one.detach() for n, one in sorted(model.named_parameters()) if one.dim()}
    name = Path(str(getattr(model, "name_or_path", ""))).name or type(model).__name__
    return Weights(
        name,
        {name: tuple(tensor.shape) for name, tensor in tensors.items()},
        lambda name, first, end: tensors[name][first:end].cpu().float(),
    )


def _open_folder(label: str, path: Path) -> Weights:
    folder = local_model_folder(str(path))
    if folder is None or path.suffix == ".gguf":
        raise GermlineError(
            f"analyze: {label} is no run, model folder or adapter on this machine: name a folder, "
            "or download the model first"
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
    return _from_files(label, files)


def _from_files(label: str, files: Sequence[Path]) -> Weights:
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

    def rows(name: str, first: int, end: int) -> Tensor:
        # Opened for each read, as the pages of a mapped file count as memory of this process.
        with _opened(places[name]) as file:
            return file.get_slice(name)[first:end].float()

    identity = _stats(files)
    return Weights(label, dict(sorted(shapes.items())), rows, files=files, identity=identity)


def _merged(adapter: StoredAdapter, model: Weights, label: str) -> Weights:
    """Return a model with an adapter, of which each tensor is merged as it is read."""
    own = [adapter.folder / CONFIG, adapter.folder / TENSORS]
    settings = json.loads(own[0].read_bytes())
    parts = {name.removesuffix(".lora_A.weight"): one for name, one in adapter.tensors.items()}
    for module, a in list(parts.items()):
        if module.endswith(".lora_B.weight"):
            continue
        shape, sides = model.shapes.get(f"{module}.weight", ()), {a.shape[1]}
        sides.add(len(adapter.tensors[f"{module}.lora_B.weight"]))
        if set(shape) != sides:
            raise GermlineError(f"it has no layer for the adapter's {module}; name its base model")

    def rows(name: str, first: int, end: int) -> Tensor:
        value, module = model.rows(name, first, end), name.removesuffix(".weight")
        if module not in parts:
            return value
        a, b = parts[module], adapter.tensors[f"{module}.lora_B.weight"]
        is_transposed = model.shape(name) != (len(b), a.shape[1])  # GPT-2 stores [in, out]
        if len(b) == a.shape[1]:
            is_transposed = bool(settings.get("fan_in_fan_out"))
        change = a.T[first:end] @ b.T if is_transposed else b[first:end] @ a
        return value + change * (adapter.alpha / adapter.rank)

    weights = Weights(label, model.shapes, rows, start=model, base=model)
    weights.files, weights.identity = [*model.files, *own], [model.identity, _stats(own)]
    return weights


def _open_run(directory: RunDirectory, generation: int | None, folder: Path) -> Weights:
    path, last, label = directory.path, generation, f"{directory.path}@{generation}"
    if last is None:
        last, label = newest_generation(directory), str(path)
    model = _model_of_run(directory)
    changed = _rebuilt(directory, last, model, folder)
    if model is not None and not {*changed.names} <= {*model.names}:
        model = None  # its files name tensors otherwise, so all tensors were kept
    is_plain = directory.config.space.kind in ("full", "low_rank") and not directory.ancestors
    start = model
    if model is None or not is_plain:
        begun = _rebuilt(directory, -1, model, folder, load_engine)
        start = _overlaid(f"{path}@-1", begun, model)
    weights = _overlaid(label, changed, model)
    continued = directory.ancestors or getattr(directory.config.space, "init_adapter", None)
    weights.start, weights.base = start, start if continued else model or start
    weights.directory, weights.generation = directory, last
    weights.units, weights.identity = changed.units, changed.identity
    return weights


def _overlaid(label: str, changed: Weights, rest: Weights | None) -> Weights:
    """Return a model of which some tensors are replaced."""
    if rest is None:
        return Weights(label, changed.shapes, changed.rows)

    def rows(name: str, first: int, end: int) -> Tensor:
        owner = changed if name in changed.shapes else rest
        return owner.rows(name, first, end)

    return Weights(label, rest.shapes, rows)


def _model_of_run(directory: RunDirectory) -> Weights | None:
    """Return the model on disk that a run began with; None if it has no safetensors files."""
    try:
        return _open_folder(
            directory.config.model, Path(model_source(directory.config.model)).expanduser()
        )
    except GermlineError:
        return None


def _rebuilt(
    directory: RunDirectory,
    generation: int,
    model: Weights | None,
    folder: Path,
    load: Callable[..., Engine] = load_single_model,  # of an ensemble, its best member
) -> Weights:
    """Return what a run had changed after a generation, with its units.

    They are read from the file of an earlier call, if there is one. If the model on disk has other
    names, or is not known, these are all tensors.
    """
    entries = directory.journal.read(generation + 1)
    digest = entries[-1].digest if entries else directory.base_digest
    files = _stats(model.files if model else ())  # the engine refuses another model than the run's
    known = json.dumps([str(directory.path.resolve()), generation, digest, files])
    path = folder / f"weights-{hashlib.sha256(known.encode()).hexdigest()[:16]}.safetensors"
    if not path.exists():
        engine = load(directory, generates=False, generation=generation)
        masters = cast("Masters", engine.weights)
        tensors = masters.merged_tensors()
        changed = {one.name for one in (*masters.changed_weights(), *masters.adapted)}
        if model is None or not changed <= {*model.names}:
            changed = {*tensors}
        kept = {name: tensors[name].detach().float().cpu().contiguous() for name in changed}
        unfinished = path.with_suffix(f".{os.getpid()}.partial")  # of several analyses at once
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_replace(path, unfinished):
            save_file(kept, unfinished, metadata={"units": json.dumps(masters.units)})
    weights = _from_files(str(path), [path])
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
