"""What an analysis is asked and what it answers: sources with a start, and a table with charts.

`ANALYSES` is the table: an analysis is a function of a module of this package, whose settings are
the section that its signature names. Rows that a long analysis has measured are kept beside the
result, so an interrupted one goes on where it stopped.
"""

import hashlib
import importlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Literal, cast, get_type_hints

import yaml
from torch import nn

from germline.analysis.groups import short_labels
from germline.analysis.weights import (
    Generation,
    Source,
    Weights,
    check_same_start,
    open_weights,
    shared_names,
)
from germline.config.base import Section, make_section
from germline.record.atomic_files import (
    Row,
    append_rows,
    check_writable,
    keep_rows,
    plain,
    read_rows,
    write_atomically,
    write_json,
)
from germline.report import plots
from germline.report.charts import Chart
from germline.report.text_format import number, with_interval
from germline.run.weights import export
from germline.spaces.peft_files import is_adapter
from germline.types import GermlineError

Analysis = Literal[
    "deltas", "cosine", "trajectory", "modes", "robustness", "directions", "coverage"
]

ANALYSES: Mapping[Analysis, str] = {
    "deltas": "changes",
    "cosine": "changes",
    "trajectory": "trajectory",
    "modes": "score_lines",
    "robustness": "score_tries",
    "directions": "score_lines",
    "coverage": "score_tries",
}
"""The analyses that `analyze` knows, and their modules."""


@dataclass(frozen=True)
class Result:
    """What an analysis found.

    Attributes:
        title: what was measured, in a few words.
        columns: keys of the rows that the table shows.
        rows: texts, numbers, and pairs of a mean and its 95 % interval.
        charts: of the figure, below each other.
        values: what is in no row, for JSON.
        notes: sentences below the table.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    charts: Sequence[Chart]
    values: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def table(self) -> list[list[str]]:
        """The headings and the cells of the table."""
        headings = [key.replace("_", " ").replace("kl ", "KL ") for key in self.columns]
        return [headings, *([cell(row.get(key)) for key in self.columns] for row in self.rows)]

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
        opened: the weights of the sources, whose starts are known and the same model.
        watch: is called with what is measured now.
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
        models = [[one.identity, one.start and one.start.identity] for one in opened]
        question = repr([models, settings.model_dump()]).encode()
        self._path = folder / f"{what}-{hashlib.sha256(question).hexdigest()[:8]}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        keep_rows(self._path, lambda _: True)  # without a torn last line
        self._rows = {row["key"]: row for row in read_rows(self._path)}

    @property
    def labels(self) -> list[str]:
        """The labels of the sources."""
        return [one.label for one in self.opened]

    @cached_property
    def names(self) -> list[str]:
        """The tensors that all sources and their starts have, sorted by name."""
        return shared_names([model for one in self.opened for model in (one, one.start) if model])

    def row(self, key: str, measure: Callable[..., Mapping[str, Any]], *of: Any) -> Row:
        """Return the row of a key; if it is new, `measure(*of)` is called, and the row is kept."""
        self.watch(f"{self.what}: {key}")
        if key not in self._rows:
            row = plain({"key": key, **measure(*of)})  # NaN is None, as in a row that was read
            self._rows[key] = cast("Row", row)
            append_rows(self._path, [self._rows[key]])
        return self._rows[key]


def analyze(  # noqa: PLR0913 - all that a result depends on
    what: Analysis,
    sources: Sequence[Source],
    *,
    start: Source | None = None,
    generations: Sequence[Generation] = (None,),
    out: Path | str | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
    emit: Literal["mergekit"] | None = None,
    watch: Callable[[str], None] = lambda _: None,
) -> Result:
    """Analyze what training did to weights.

    Args:
        what: the analysis.
        sources: run directories, model folders, PEFT adapters, hub ids, loaded models.
        start: the model that the folders and loaded models were trained from.
        generations: of the runs, see `germline.export`; several are compared with each other.
        out: folder for WHAT.json and WHAT.png, and for what lets the same call continue;
            None writes no file.
        settings: of the analysis, see its module.
        emit: `mergekit` also writes merge.yaml, the merge of the sources, and exports the runs.
        watch: is called with what is measured now.

    Raises:
        GermlineError: a source cannot be opened, the sources do not belong together, or a setting
            is wrong.
    """
    one_source = isinstance(sources, str | Path | nn.Module)
    if what not in ANALYSES or not sources or one_source:
        names = ", ".join(ANALYSES)
        raise GermlineError(f"analyze: give one of {names} and a list of sources, found {what!r}")
    measure = getattr(importlib.import_module(f"germline.analysis.{ANALYSES[what]}"), what)
    section = make_section(get_type_hints(measure)["settings"], settings, "analyze: ", "")
    with ExitStack() as stack:
        folder = Path(out or stack.enter_context(TemporaryDirectory()))
        check_writable(folder, folder=True)
        rebuilt = folder / f"{what}-weights"
        stack.callback(shutil.rmtree, rebuilt, ignore_errors=True)
        opened = _opened(sources, generations, start, rebuilt, watch)
        request = Request(what, opened, section, folder, watch)
        result: Result = measure(request, section)
        if out:
            write_json(folder / f"{what}.json", result.as_json())
        if out and result.charts:
            plots.draw_panels(folder / f"{what}.png", result.title, result.charts)
        if out and emit:
            merge = f"merge: mergekit-yaml {write_merge(opened, folder)} MERGED"
            result = replace(result, notes=[*result.notes, merge])
    return result


def _opened(
    sources: Sequence[Source],
    generations: Sequence[Any],
    start: Source | None,
    folder: Path,
    watch: Callable[[str], None],
) -> list[Weights]:
    """Open each source after each generation; all must have one start model."""
    began = None if start is None else open_weights(start, folder=folder)
    opened = []
    for source in sources:
        watch(f"opening {'a model' if isinstance(source, nn.Module) else source}")
        opened += [open_weights(source, one, began, folder=folder) for one in generations]
    for one in opened:
        if one.start is None:
            raise GermlineError(
                f"analyze: {one.label} is a model without its training: name the model it began "
                "with (--start MODEL)"
            )
    check_same_start(opened)
    for one, label in zip(opened, short_labels([one.label for one in opened]), strict=True):
        one.label = label
    return opened


def write_merge(opened: Sequence[Weights], folder: Path) -> Path:
    """Write the YAML of a merge of sources for the program `mergekit`; return its path.

        merged = start + sum_i weight_i (model_i - start)    task arithmetic (Ilharco et al. 2023)

    With weights of 1 / models, as written, this is the mean of the models (model soup, `linear`).
    Runs are exported into a folder beside the file.
    """
    exports, base = folder / "models", opened[0].base
    start = base.path if base and base.path else _exported(opened[0], -1, exports)
    models = []
    for one in opened:
        place = one.path or _exported(one, one.generation, exports)
        model = {"model": _named(start), "lora": _named(place)}
        model = model if is_adapter(place) else {"model": _named(place)}
        models.append({"model": model, "parameters": {"weight": 1 / len(opened)}})
    merge = {
        "merge_method": "task_arithmetic",
        "base_model": {"model": _named(start)},
        "models": models,
        "dtype": "float32",
    }
    write_atomically(folder / "merge.yaml", yaml.safe_dump(merge, sort_keys=False).encode())
    return folder / "merge.yaml"


def _named(folder: Path) -> dict[str, str]:
    # A map, as mergekit takes what follows @ or + in a text for a revision or a LoRA.
    return {"path": str(folder.resolve())}


def _exported(one: Weights, generation: int, folder: Path) -> Path:
    if one.directory is None:
        raise GermlineError(f"analyze --emit: {one.label} is no folder: save the model first")
    key = hashlib.sha256(repr(one.identity).encode()).hexdigest()[:8]  # of another run of this name
    path = folder / f"{one.label.strip('/').replace('/', '-')}@{generation}-{key}"
    if not path.exists():
        is_vote = not one.directory.config.method.trains_center and generation != -1
        export(one.directory.path, path, "merged", None if is_vote else generation)
    return path
