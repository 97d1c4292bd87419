"""What an analysis is asked, the weights of its sources read piece by piece, and what it answers.

Files are mapped into memory for one read at a time. The weights of a run or an adapter are rebuilt
by its engine, those of a run from a snapshot or from the journal alone, and kept in a file of the
analysis, so that several are compared without several models in memory.

Rows that an analysis has measured are kept beside its result: an interrupted one goes on there.
"""

import hashlib
import math
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig

from germline.config import load_config
from germline.config.base import Section
from germline.config.config_files import model_source
from germline.engines.checkpoint_files import FLOATS, check_not_quantized, stored_tensors
from germline.engines.master_weights import Masters
from germline.engines.model_tensors import root_digest, tensor_digests
from germline.engines.pretrained import loading_errors, local_model_folder, silence_transformers
from germline.protocols import Engine
from germline.record import JournalEntry, RunDirectory
from germline.record.atomic_files import (
    Row,
    append_rows,
    explain_write_errors,
    keep_rows,
    plain,
    read_rows,
)
from germline.record.run_paths import check_source
from germline.report.charts import Chart
from germline.report.text_format import number, with_interval
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
"""A run, a folder of a model or PEFT adapter, a hub id, or a loaded model with merged adapter."""

Generation = int | Literal["best"] | None

CHUNK = 1 << 23
"""Numbers read at once, of all sources together: 32 MB in fp32."""


@dataclass(eq=False)
class Weights:
    """All tensors of a model, by the names that its Hugging Face model has for them.

    Attributes:
        label: names the source, and the generation where it was asked for.
        shapes: by name, sorted.
        files: that hold them, by name.
        identity: what decides the values, for results that are kept; new for a loaded model.
        path: the folder of a model or an adapter; None of a run.
        start: the weights that training began with; None where the source does not say.
        base: the model that an adapter is added to, or else the start; None: these weights. The
            base of the start of a fork is the model that its first ancestor began with.
        units: of a run, by name, what sigma and learning rate are multiples of.
        directory: of a run.
        entries: of a run's journal, those that are included.
    """

    label: str
    shapes: Mapping[str, tuple[int, ...]]
    files: Mapping[str, Path]
    identity: Sequence[Any] = ()
    path: Path | None = None
    start: "Weights | None" = None
    base: "Weights | None" = None
    units: Mapping[str, float] = field(default_factory=dict)
    directory: RunDirectory | None = None
    entries: Sequence[JournalEntry] = ()

    def read(self, name: str, first: int = 0, end: int | None = None) -> Tensor:
        """Read the rows `[first:end]` of a tensor as fp32 on the CPU."""
        # Opened for each read, as the pages of a mapped file count as memory of this process.
        with safe_open(self.files[name], framework="pt") as file:
            value = file.get_slice(name)[first:end].float()
        if not value.isfinite().all():
            raise GermlineError(f"analyze: {name} has NaN or infinite numbers in {self.label}")
        return value

    @cached_property
    def digest(self) -> str:
        """The digest of all tensors, sorted by name; each is read once."""
        return root_digest(tensor_digests({name: self.read(name)})[name] for name in self.shapes)

    def equals(self, other: "Weights") -> bool:
        """Tell whether all tensors are equal; those of equal files are not read."""
        return self.identity == other.identity or self.digest == other.digest


def open_weights(
    source: Source, generation: Generation = None, start: "Weights | None" = None, *, folder: Path
) -> Weights:
    """Open the weights of a source.

    Args:
        source: see `Source`.
        generation: of a run: the last update to include, -1 for the start, or `best`: that before
            the best held-out score; default: the newest that can be rebuilt.
        start: the weights that training began with, where the source does not say.
        folder: where rebuilt weights are written.

    Raises:
        GermlineError: the source cannot be read, is quantized, or has no such generation.
    """
    if isinstance(source, nn.Module):
        model, path = cast("Any", source), folder / uuid.uuid4().hex
        with silence_transformers():
            model.save_pretrained(path)
        label = Path(model.name_or_path).name or type(model).__name__
        weights = replace(_open_folder(label, path), path=None)
    else:
        path = Path(model_source(str(source)))
        check_source(path)
        directory = RunDirectory.open(path) if (path / "run.json").exists() else None
        last = generation_of_source(str(source), directory, generation)
        if directory is not None:
            return _open_run(directory, last, folder)
        if is_adapter(path):
            return _open_adapter(str(source), path, folder)
        weights = _open_folder(str(source), path)
    weights.start, weights.base = start, start and (start.base or start)
    return weights


def pieces(sources: Sequence[Weights], name: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the values of a tensor at the start and now, `[sources, numbers]`, piece by piece."""
    shape = sources[0].shapes[name]
    step = max(1, CHUNK // len(sources) // max(1, math.prod(shape[1:])))
    for first in range(0, shape[0], step):
        rows, both = (name, first, first + step), ([one.start for one in sources], sources)
        read = [[one.read(*rows).flatten() for one in some if one] for some in both]
        yield torch.stack(read[0]), torch.stack(read[1])


def common_start(sources: Sequence[Weights]) -> Weights:
    """Return the model that training of all sources began with.

    Where a run is beside its fork, this is the model that the first one began with.

    Raises:
        GermlineError: training began with different models, or with an unknown one.
    """
    for one in sources:
        if one.base is None:
            raise GermlineError(
                f"analyze: {one.label} is a model without its training: name the model it began "
                "with (--start MODEL)"
            )
    bases = [one.base for one in sources if one.base]
    if not all(map(bases[0].equals, bases)):
        bases = [base.base or base for base in bases]
    for one, base in zip(sources, bases, strict=True):
        if not base.equals(bases[0]):
            raise GermlineError(
                f"analyze: {sources[0].label} began with weights of digest {bases[0].digest[:16]} "
                f"({bases[0].label}), and {one.label} with {base.digest[:16]} ({base.label}): "
                "compare runs of one start model"
            )
    return bases[0]


def _open_folder(label: str, path: Path) -> Weights:
    """Return the weights of a model folder, or of a hub id whose folder is on this machine."""
    folder = local_model_folder(str(path), weights=True)
    with loading_errors(str(folder)):
        weights = _in_folder(label, folder) if folder else None
        if folder is None or weights is None or not weights.files:
            raise GermlineError(
                f"{label} has no safetensors files of a model on this machine: name a run, an "
                "adapter or a folder that save_pretrained wrote; download a model of the hub first"
            )
        check_not_quantized(str(folder), PreTrainedConfig.from_pretrained(str(folder)))
    weights.identity, weights.path = _stats(sorted({*weights.files.values()})), folder
    return weights


def _in_folder(label: str, folder: Path, **about: Any) -> Weights:
    stored = sorted(one for one in stored_tensors(str(folder)) if one[1] in FLOATS and one[2])
    shapes = {name: shape for name, _, shape, _ in stored}
    return Weights(label, shapes, {name: file for name, *_, file in stored}, **about)


def _open_adapter(label: str, path: Path, folder: Path) -> Weights:
    settings = adapter_settings(path)
    try:
        base = open_weights(settings["model"], folder=folder)
    except GermlineError as error:
        raise GermlineError(f"the base model of {label} cannot be opened: {error}") from error
    identity = [_stats([path / CONFIG, path / TENSORS]), base.identity]
    weights = _rebuilt(label, identity, folder, load_engine(None, load_config(settings)))
    return replace(weights, path=path, start=base, base=base)


def _open_run(directory: RunDirectory, generation: int | None, folder: Path) -> Weights:
    path, config = directory.path, directory.config

    def rebuilt(label: str, last: int, load: Callable[..., Engine]) -> Weights:
        entries = directory.journal.read(last + 1)
        digest = entries[-1].digest if entries else directory.base_digest
        identity = [str(path.resolve()), last, digest]
        engine = load(directory, generates=False, generation=last)
        return _rebuilt(label, identity, folder, engine, directory=directory, entries=entries)

    last = newest_generation(directory) if generation is None else generation
    label = str(path) if generation is None else f"{path}@{generation}"
    start = rebuilt(f"{path}@-1", -1, load_engine)
    weights = rebuilt(label, last, load_single_model)  # of an ensemble, its best member
    with suppress(GermlineError):  # a model without safetensors files
        model = _open_folder(config.model, Path(model_source(config.model)).expanduser())
        start.base = model if {*model.shapes} == {*weights.shapes} else None
    is_trained = directory.ancestors or getattr(config.space, "init_adapter", None)
    weights.start, weights.base = start, start if is_trained else start.base or start
    return weights


def _rebuilt(
    label: str, identity: Sequence[Any], folder: Path, engine: Engine, **about: Any
) -> Weights:
    """Return the weights of an engine, which are written into a file."""
    masters = cast("Masters", engine.weights)
    tensors = masters.merged_tensors().items()
    path = folder / uuid.uuid4().hex / "model.safetensors"
    with explain_write_errors(path):
        path.parent.mkdir(parents=True)
        save_file({name: one.detach().float().cpu().contiguous() for name, one in tensors}, path)
    about |= {"identity": identity, "units": masters.units}
    return _in_folder(label, path.parent, **about)


def _stats(files: Sequence[Path | str]) -> list[Any]:
    stats = [(str(Path(file).resolve()), Path(file).stat()) for file in files]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


@dataclass(frozen=True)
class Result:
    """What an analysis found.

    Attributes:
        title: what was measured, in a few words.
        rows: texts, numbers, and pairs of a mean and its 95 % interval.
        charts: of the figure, below each other.
        values: what is in no row, for JSON.
        notes: sentences below the table.
        hidden: keys of the rows that the table does not show.
    """

    title: str
    rows: Sequence[Row]
    charts: Sequence[Chart]
    values: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    hidden: Sequence[str] = ()

    @property
    def table(self) -> list[list[str]]:
        """The headings and the cells of the table."""
        keys = [key for key in dict.fromkeys(chain(*self.rows)) if key not in self.hidden]
        headings = [key.replace("_", " ").replace("kl ", "KL ") for key in keys]
        return [headings, *([cell(row.get(key)) for key in keys] for row in self.rows)]

    def as_json(self) -> dict[str, Any]:
        """Return the title, the notes and all numbers."""
        results = {"rows": self.rows, **self.values}
        return {"title": self.title, "notes": [*self.notes], "results": results}


def cell(value: Any) -> str:
    """Format a text, a number, or a mean with its interval, where that is known."""
    if not isinstance(value, tuple):
        return value if isinstance(value, str) else number(value)
    return with_interval(*value)


class Request:
    """The opened sources of an analysis, and the rows that it has measured, in a file.

    The file is named after the question that the rows answer: that of a run which has trained on
    has another one.

    Attributes:
        what: the name of the analysis.
        opened: the weights of the sources.
        watch: is called with what is measured now.
        start: the model that training of all sources began with.
        labels: of the sources.
        methods: of the sources; those of a folder of run seeds are of one method.
    """

    def __init__(
        self,
        what: str,
        opened: Sequence[Weights],
        settings: Section,
        folder: Path,
        watch: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.what, self.opened, self.watch = what, opened, watch
        for one, label in zip(opened, short_labels([one.label for one in opened]), strict=True):
            one.label = label
        self.start = common_start(opened)
        self.labels = [one.label for one in opened]
        self.methods = [method_of(label) for label in self.labels]
        models = [[one.identity, one.start and one.start.identity] for one in opened]
        question = repr([models, settings.model_dump()]).encode()
        self._path = folder / f"{what}-{hashlib.sha256(question).hexdigest()[:8]}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        keep_rows(self._path, lambda _: True)  # without a torn last line
        self._rows = {row["key"]: row for row in read_rows(self._path)}

    @cached_property
    def names(self) -> list[str]:
        """The tensors that all sources and their starts have; other shapes of one are refused."""
        models = [model for one in self.opened for model in (one, one.start) if model]
        first, names = models[0], sorted(set.intersection(*({*one.shapes} for one in models)))
        why = [] if names else [f"no tensor is in all of {', '.join(self.labels)} and their starts"]
        for one, name in product(models, names):
            shape, expected = [*one.shapes[name]], [*first.shapes[name]]
            if shape != expected:
                why.append(f"{name} has shape {shape} in {one.label}, {expected} in {first.label}")
        if why:
            raise GermlineError(f"analyze: {why[0]}: compare models of one architecture")
        return names

    @cached_property
    def groups(self) -> dict[str | int, list[str]]:
        """Names of the tensors of each layer, by its number; of each kind of module; last, `all`.

        Kinds are such as `q_proj` or `q_proj.bias`.
        """
        layers: dict[str | int, list[str]] = {}
        kinds: dict[str | int, list[str]] = {}
        for name in self.names:
            if layer := re.search(r"\.(\d+)\.", name):
                layers.setdefault(int(layer[1]), []).append(name)
            kind = re.sub(r".*\.(?!bias$)", "", name.removesuffix(".weight"))
            kinds.setdefault(kind, []).append(name)
        return {**{layer: layers[layer] for layer in sorted(layers)}, **kinds, "all": self.names}

    def row(self, key: str, measure: Callable[..., Mapping[str, Any]], *of: Any) -> Row:
        """Return the row of a key; if it is new, `measure(*of)` is called, and the row is kept."""
        self.watch(f"{self.what}: {key}")
        if key not in self._rows:
            row = plain({"key": key, **measure(*of)})  # NaN is None, as in a row that was read
            self._rows[key] = cast("Row", row)
            append_rows(self._path, [self._rows[key]])
        return self._rows[key]


def short_labels(labels: Sequence[str]) -> list[str]:
    """Return a label for each path, as results are kept by label.

    It is the last name, with METHOD before `seed-0`; where two are alike, the whole path; and where
    these are, such as the names of loaded models, it has a number.
    """
    paths = map(Path, labels)
    short = ["/".join(one.parts[-1 - one.name.startswith("seed-") :]) for one in paths]
    numbered = [f"{one} ({labels[: at + 1].count(one)})" for at, one in enumerate(labels)]
    return next(some for some in (short, [*labels], numbered) if len({*some}) == len(some))


def method_of(label: str) -> str:
    """Return the label of a source without its run seed, of one or several generations."""
    return re.sub(r"/seed-[^/@]*(@-?\d+)?$", r"\1", label)


def pairs_by_method(methods: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
    """Return the pairs of sources, those between seeds of the same two methods together."""
    pairs: dict[str, list[tuple[int, int]]] = {}
    for first, second in combinations(range(len(methods)), 2):
        names = dict.fromkeys([methods[first], methods[second]])
        pairs.setdefault(" and ".join(names), []).append((first, second))
    return pairs
