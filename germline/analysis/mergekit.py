"""Write the YAML of a merge of the sources, for the program `mergekit`, which is not needed here.

    merged = start + sum_i weight_i (model_i - start)        task arithmetic (Ilharco et al. 2023)

With weights of 1 / models, as written, this is the mean of the models (model soup, `linear`).
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import yaml

from germline.analysis.weights import Weights
from germline.record.atomic_files import write_atomically
from germline.run.weights import export
from germline.spaces.peft_files import is_adapter
from germline.types import GermlineError


def write_merge(opened: Sequence[Weights], folder: Path) -> Path:
    """Export the runs into folders beside `merge.yaml`, and return this file."""
    base = opened[0].base
    start = base.path if base and base.path else _exported(opened[0], -1, folder)
    models = []
    for one in opened:
        place = one.path or _exported(one, one.generation, folder)
        model = {"model": _named(start), "lora": _named(place)}
        model = model if is_adapter(place) else {"model": _named(place)}
        models.append({"model": model, "parameters": {"weight": 1 / len(opened)}})
    merge = {
        "merge_method": "task_arithmetic",
        "base_model": {"model": _named(start)},
        "models": models,
        "dtype": "float32",
    }
    path = folder / "merge.yaml"
    write_atomically(path, yaml.safe_dump(merge, sort_keys=False).encode())
    return path


def _named(folder: Path) -> dict[str, str]:
    # A map, as mergekit takes what follows @ or + in a text for a revision or a LoRA.
    return {"path": str(folder.resolve())}


def _exported(one: Weights, generation: int, folder: Path) -> Path:
    if one.directory is None:
        raise GermlineError(f"analyze --emit: {one.label} is no folder: save the model first")
    key = hashlib.sha256(repr(one.identity).encode()).hexdigest()[:8]  # of another run of this name
    path = folder / "models" / f"{one.label.strip('/').replace('/', '-')}@{generation}-{key}"
    if not path.exists():
        is_vote = not one.directory.config.method.trains_center and generation != -1
        export(one.directory.path, path, "merged", None if is_vote else generation)
    return path
