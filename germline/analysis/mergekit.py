"""Write the YAML of a merge of the sources, for the program `mergekit`, which is not needed here.

    merged = start + sum_i weight_i (model_i - start)        task arithmetic (Ilharco et al. 2023)

With weights of 1 / models, as written, this is the mean of the models (model soup, `linear`).
"""

import hashlib
from pathlib import Path

import yaml

from germline.analysis.request import Request
from germline.analysis.weights import Weights
from germline.record.atomic_files import write_atomically
from germline.run.weights import export
from germline.types import GermlineError


def write_merge(request: Request) -> Path:
    """Export the runs into folders beside `merge.yaml`, and return this file."""
    folder, opened = request.folder, request.opened
    base = opened[0].base
    assert base is not None
    start = base.files[0].parent if base.files else _exported(opened[0], -1, folder)
    models = [
        str(_exported(one, one.generation, folder) if one.directory else _name(one, start))
        for one in opened
    ]
    parameters = {"weight": round(1 / len(models), 6)}
    merge = {
        "merge_method": "task_arithmetic",
        "base_model": str(start.resolve()),
        "models": [{"model": model, "parameters": parameters.copy()} for model in models],
        "dtype": "float32",
    }
    path = folder / "merge.yaml"
    write_atomically(path, yaml.safe_dump(merge, sort_keys=False).encode())
    return path


def _exported(one: Weights, generation: int, folder: Path) -> Path:
    if one.directory is None:
        raise GermlineError(f"analyze --emit: {one.label} is no folder: save the model first")
    key = hashlib.sha256(repr(one.identity).encode()).hexdigest()[:8]  # of another run of this name
    path = folder / "models" / f"{one.label.strip('/').replace('/', '-')}@{generation}-{key}"
    if not path.exists():
        is_vote = not one.directory.config.method.trains_center and generation != -1
        export(one.directory.path, path, "merged", None if is_vote else generation)
    return path.resolve()


def _name(one: Weights, start: Path) -> str:
    """Return a folder as mergekit names it; an adapter stands behind its model."""
    if not one.files:
        raise GermlineError(f"analyze --emit: {one.label} is no folder: save the model first")
    place = one.files[-1].parent.resolve()
    return f"{start.resolve()}+{place}" if one.files[-1].name.startswith("adapter") else str(place)
