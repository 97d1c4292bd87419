"""What an analysis is asked and what it answers: opened sources, and a table with charts.

Rows that a long analysis has measured are kept beside the result, so an interrupted one goes on
where it stopped. Tables and charts average tensors by layer and kind of module, and sources by
method.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, combinations
from pathlib import Path
from typing import Any, cast

from germline.analysis.weights import Weights, common_start, shared_names
from germline.config.base import Section
from germline.record.atomic_files import Row, append_rows, keep_rows, plain, read_rows
from germline.report.charts import Chart
from germline.report.text_format import number, with_interval


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


def tensor_groups(names: Sequence[str]) -> dict[str | int, list[str]]:
    """Return the tensors of each layer, by its number, and of each kind of module; last, `all`.

    Kinds are such as `q_proj` or `q_proj.bias`.
    """
    layers: dict[str | int, list[str]] = {}
    kinds: dict[str | int, list[str]] = {}
    for name in names:
        if layer := re.search(r"\.(\d+)\.", name):
            layers.setdefault(int(layer[1]), []).append(name)
        kind = re.sub(r".*\.(?!bias$)", "", name.removesuffix(".weight"))
        kinds.setdefault(kind, []).append(name)
    return {**{layer: layers[layer] for layer in sorted(layers)}, **kinds, "all": [*names]}


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
