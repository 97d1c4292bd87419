"""What an analysis is asked and what it answers: sources with a start, and a table with charts.

`analyze` finds the analysis by its name: a module of this package with a function
`measure(request, settings)` and, if it has settings, a section `Settings`. Rows that a long
analysis has measured are kept beside the result, so an interrupted one goes on where it stopped.
"""

import importlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast, get_args

from pydantic import ValidationError
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
from germline.config.base import Section
from germline.record.atomic_files import (
    Row,
    append_rows,
    check_writable,
    keep_rows,
    plain,
    read_rows,
    write_json,
)
from germline.report.charts import Chart
from germline.report.text_format import number
from germline.types import GermlineError

Analysis = Literal[
    "deltas", "cosine", "trajectory", "modes", "robustness", "directions", "coverage"
]
"""The analyses that `analyze` knows: modules of this package."""


@dataclass(frozen=True)
class Result:
    """What an analysis found.

    Attributes:
        title: what was measured, in a few words.
        columns: headings of the table, by keys of the rows.
        rows: texts, numbers, and pairs of a mean and its 95 % interval.
        charts: of the figure, below each other.
        values: what is in no row, for JSON.
        notes: sentences below the table.
    """

    title: str
    columns: Mapping[str, str]
    rows: Sequence[Row]
    charts: Sequence[Chart]
    values: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def table(self) -> list[list[str]]:
        """The cells of the table."""
        return [[cell(row.get(key)) for key in self.columns] for row in self.rows]

    def as_json(self) -> dict[str, Any]:
        """Return the title, the notes and all numbers."""
        results = {"rows": self.rows, **self.values}
        return {"title": self.title, "notes": [*self.notes], "results": results}


def cell(value: Any) -> str:
    """Format a text, a number, or a mean with its interval."""
    if isinstance(value, tuple):
        mean, (low, high) = value
        return f"{number(mean)} [{number(low)}, {number(high)}]"
    return value if isinstance(value, str) else number(value)


@dataclass(frozen=True)
class Request:
    """The sources of an analysis.

    Attributes:
        what: the name of the analysis.
        sources: runs, folders, adapters, hub ids and loaded models.
        folder: for the results, and for what lets an interrupted analysis continue.
        start: the model that training of the folders and loaded models began with.
        generations: of the runs; each source is taken after each of them.
        watch: is called with what is measured now.
    """

    what: str
    sources: Sequence[Source]
    folder: Path
    start: Source | None = None
    generations: Sequence[Generation] = (None,)
    watch: Callable[[str], None] = field(default=lambda _: None)

    @cached_property
    def opened(self) -> list[Weights]:
        """The weights of all sources, whose starts are known and the same model.

        Raises:
            GermlineError: they are not, or a source cannot be opened.
        """
        start = None if self.start is None else open_weights(self.start, folder=self.rebuilt)
        opened = []
        for source in self.sources:
            for generation in self.generations:
                self.watch(f"opening {source if isinstance(source, str | Path) else 'a model'}")
                one = open_weights(source, generation, folder=self.rebuilt)
                if one.start is None:
                    if start is None:
                        raise GermlineError(
                            f"analyze: {one.label} is a model without its training: name the model "
                            "it began with (--start MODEL)"
                        )
                    one.start, one.base = start, start.base or start
                opened.append(one)
        check_same_start(opened)
        for one, label in zip(opened, short_labels([one.label for one in opened]), strict=True):
            one.label = label
        return opened

    @cached_property
    def names(self) -> list[str]:
        """The tensors that all sources and their starts have, sorted by name."""
        return shared_names([model for one in self.opened for model in (one, one.start) if model])

    @property
    def rebuilt(self) -> Path:
        """The folder of rebuilt weights, which is deleted after the analysis."""
        return self.folder / f"{self.what}-weights"

    def kept_rows(self, settings: Section) -> "KeptRows":
        """Return the rows that an interrupted call with the same question has measured."""
        models = [one.identity for one in self.opened]
        starts = [one.start.identity for one in self.opened if one.start and not one.directory]
        question = [models, starts, settings.model_dump(mode="json")]
        return KeptRows(self.folder / f"{self.what}.jsonl", plain(question))


class KeptRows:
    """Rows by key in a file, of which the first line is the question that they answer.

    A file of another question, such as that of a run which has trained on, begins anew.
    """

    def __init__(self, path: Path, question: object) -> None:
        self._path = path
        keep_rows(path, lambda _: True)
        first, *rows = read_rows(path) or [{}]
        self._rows = {row["key"]: row for row in rows}
        if first.get("question") != question:
            self._rows = {}
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            append_rows(path, [{"question": question}])

    def row(self, key: str, measure: Callable[[], Mapping[str, Any]]) -> Row:
        """Return the row of a key, which is measured and kept if it is new."""
        if key not in self._rows:
            row = plain({"key": key, **measure()})  # NaN is None, as in a row that was read
            self._rows[key] = cast("Row", row)
            append_rows(self._path, [self._rows[key]])
        return self._rows[key]


def analyze(  # noqa: PLR0913 - all that a result depends on
    what: Analysis,
    sources: Sequence[Source],
    *,
    start: Source | None = None,
    generation: Generation | Sequence[Generation] = None,
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
        generation: of the runs, see `germline.export`; several are compared with each other.
        out: folder for WHAT.json and WHAT.png, and for what lets the same call continue;
            None writes no file.
        settings: of the analysis, see its module.
        emit: `mergekit` also writes merge.yaml, the merge of the sources, and exports the runs.
        watch: is called with what is measured now.

    Raises:
        GermlineError: a source cannot be opened, the sources do not belong together, or a setting
            is wrong.
    """
    if what not in get_args(Analysis) or not sources or isinstance(sources, str | Path | nn.Module):
        names = ", ".join(get_args(Analysis))
        raise GermlineError(f"analyze: give one of {names} and a list of sources, found {what!r}")
    module = importlib.import_module(f"germline.analysis.{what}")
    many = isinstance(generation, Sequence) and not isinstance(generation, str)
    generations: Sequence[Any] = tuple(generation) if many else (generation,)  # type: ignore[arg-type]
    with ExitStack() as stack:
        folder = Path(out) if out else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        check_writable(folder, folder=True)
        request = Request(what, sources, folder, start, generations, watch)
        section = _section(getattr(module, "Settings", Section), settings)
        result: Result = module.measure(request, section)
        result = replace(result, notes=[*result.notes, *_notes_on_starts(request.opened)])
        if out:
            _write(result, folder, what)
        if out and emit:
            from germline.analysis.mergekit import write_merge

            merge = f"merge: mergekit-yaml {write_merge(request)} MERGED"
            result = replace(result, notes=[*result.notes, merge])
        shutil.rmtree(request.rebuilt, ignore_errors=True)
    return result


def _notes_on_starts(opened: Sequence[Weights]) -> list[str]:
    """Return a note where changes of LoRA runs stand beside changes from the model itself."""
    own = [one.label for one in opened if one.directory and one.start is not one.base]
    if len(own) in (0, len(opened)):
        return []
    return [
        f"{', '.join(own)}: the change is measured from the random adapter at the start of the "
        "run, and that of the others from the model"
    ]


def _section(kind: type[Section], settings: Mapping[str, Any]) -> Section:
    try:
        return kind(**settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        names = ", ".join(kind.model_fields) or "none"
        said = f"{first['loc'][0]}: {first['msg']}; its settings: {names}"
        raise GermlineError(f"analyze: {said}") from None


def _write(result: Result, folder: Path, what: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{what}.json", result.as_json())
    if result.charts:
        from germline.report import plots

        plots.draw_panels(folder / f"{what}.png", result.title, result.charts)
