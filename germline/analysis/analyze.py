"""`analyze`: opens the sources, calls one of `ANALYSES`, and writes its result, or their merge."""

import hashlib
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_type_hints

import yaml
from torch import nn

from germline.analysis.changes import cosine, deltas, trajectory
from germline.analysis.scores import coverage, directions, modes, robustness
from germline.analysis.weights import Generation, Request, Result, Source, Weights, open_weights
from germline.config.base import make_section
from germline.record.atomic_files import check_writable, write_atomically, write_json
from germline.report.plots import draw_panels
from germline.run.weights import export
from germline.spaces.peft_files import is_adapter
from germline.types import GermlineError

Analysis = Literal[
    "deltas", "cosine", "trajectory", "modes", "robustness", "directions", "coverage"
]

ANALYSES: Mapping[str, Callable[..., Result]] = {
    one.__name__: one
    for one in (deltas, cosine, trajectory, modes, robustness, directions, coverage)
}
"""The analyses that `analyze` knows; the settings of each are the section in its signature."""

SOURCES = {"cosine": (2, math.inf), "modes": (1, 3), "directions": (1, 2)}
"""The fewest and the most sources of an analysis; others take any number."""


def analyze(  # noqa: PLR0913 - all that a result depends on
    what: Analysis,
    sources: Sequence[Source],
    *,
    start: Source | None = None,
    generations: Sequence[Generation] = (None,),
    out: Path | str | None = None,
    settings: Mapping[str, Any] = {},
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
    if emit and not out:
        raise GermlineError("analyze: name the folder that merge.yaml is written into (out)")
    if what not in ANALYSES or isinstance(sources, str | Path | nn.Module):
        names = ", ".join(ANALYSES)
        raise GermlineError(f"analyze: give one of {names} and a list of sources, found {what!r}")
    count, (fewest, most) = len(sources) * len(generations), SOURCES.get(what, (1, math.inf))
    if not fewest <= count <= most:
        limit = f"at least {fewest:g}" if count < fewest else f"at most {most:g}"
        raise GermlineError(f"analyze {what}: give {limit} sources or generations, found {count}")
    section = make_section(get_type_hints(ANALYSES[what])["settings"], settings, "analyze: ", "")
    with ExitStack() as stack:
        folder = Path(out or stack.enter_context(TemporaryDirectory()))
        check_writable(folder, folder=True)
        rebuilt = folder / f"{what}-weights"
        stack.callback(shutil.rmtree, rebuilt, ignore_errors=True)
        began = None if start is None else open_weights(start, folder=rebuilt)
        opened = []
        for source in sources:
            watch(f"opening {'a model' if isinstance(source, nn.Module) else source}")
            opened += [open_weights(source, one, began, folder=rebuilt) for one in generations]
        request = Request(what, opened, section, folder, watch)
        result = ANALYSES[what](request, section)
        if out:
            write_json(folder / f"{what}.json", result.as_json())
            draw_panels(folder / f"{what}.png", result.title, result.charts)
        if emit:
            merge = f"merge: mergekit-yaml {write_merge(request, folder)} MERGED"
            result = replace(result, notes=[*result.notes, merge])
    return result


def write_merge(request: Request, folder: Path) -> Path:
    """Write the YAML of a merge of sources for the program `mergekit`; return its path.

        merged = start + sum_i weight_i (model_i - start)    task arithmetic (Ilharco et al. 2023)

    With weights of 1 / models, as written, this is the mean of the models (model soup, `linear`).
    Runs are exported into a folder beside the file.
    """

    def place(one: Weights) -> dict[str, str]:
        # A map, as mergekit takes what follows @ or + in a text for a revision or a LoRA.
        return {"path": str((one.path or _exported(one, folder / "models")).resolve())}

    models = []
    for one in request.opened:
        model = {"model": place(one)}
        if one.path and is_adapter(one.path):
            model = {"model": place(request.start), "lora": model["model"]}
        models.append({"model": model, "parameters": {"weight": 1 / len(request.opened)}})
    base = {"merge_method": "task_arithmetic", "base_model": {"model": place(request.start)}}
    text = yaml.safe_dump({**base, "models": models, "dtype": "float32"}, sort_keys=False)
    write_atomically(folder / "merge.yaml", text.encode())
    return folder / "merge.yaml"


def _exported(one: Weights, folder: Path) -> Path:
    if one.directory is None:
        raise GermlineError(f"analyze --emit: {one.label} is no folder: save the model first")
    run, last = one.directory, len(one.entries) - 1
    key = hashlib.sha256(repr(one.identity).encode()).hexdigest()[:8]  # of another run of this name
    path = folder / f"{'-'.join(run.path.parts[-2:])}@{last}-{key}"
    if not path.exists():
        is_vote = not run.config.method.trains_center and last != -1
        shutil.rmtree(part := folder / "part", ignore_errors=True)  # of an interrupted export
        export(run.path, part, "merged", None if is_vote else last)
        part.rename(path)
    return path
