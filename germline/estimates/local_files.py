"""What of a model is on this machine: a folder, the Hugging Face cache, or nothing yet.

Nothing here uses the network.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transformers.utils.hub import cached_file

from germline.config.file_paths import is_gguf
from germline.engines.checkpoint_files import weight_files
from germline.engines.pretrained import unpacked_source
from germline.estimates.model_shape import ModelShape
from germline.nano import NANO_DIR

Found = Literal["embedded", "folder", "cache", "download", "without_weights"]


@dataclass(frozen=True)
class Source:
    """Where a model or dataset comes from.

    Attributes:
        what: `model`, `dataset`, or the `scorer` of completions.
        name: as the config spells it.
        found: `embedded` in germline, a `folder` (or file) here, in the `cache` of Hugging Face,
            still to `download`, or a folder `without_weights`.
        bytes: of its files where they are here; of weights that are not, their size computed from
            config.json; None where nothing tells.
    """

    what: Literal["model", "dataset", "scorer"]
    name: str
    found: Found
    bytes: int | None


def local_model_folder(source: str) -> Path | None:
    """Return the folder of a model on this machine: itself, or in the Hugging Face cache.

    That of a GGUF file may hold the config and the tokenizer alone.

    Raises:
        GermlineError: a GGUF file cannot be loaded.
    """
    if source == "nano":
        return NANO_DIR
    source = unpacked_source(source, weights=False)
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    try:
        file = cached_file(source, "config.json", local_files_only=True)
    except (OSError, ValueError):  # it is not in the cache, or no name of a repository
        return None
    return None if file is None else Path(file).parent


def model_source(source: str, shape: ModelShape) -> Source:
    """Tell where the weights of a model come from, and how large they are."""
    folder = local_model_folder(source)
    if is_gguf(source):
        return Source("model", source, "folder", Path(source).expanduser().stat().st_size)
    files = None if folder is None else weight_files(folder)
    is_folder = Path(source).expanduser().is_dir()
    if files is None:
        found: Found = "without_weights" if is_folder else "download"
        return Source("model", source, found, shape.numbers * shape.config_dtype.itemsize)
    found = "folder" if is_folder else "cache"
    if source == "nano":
        found = "embedded"
    return Source("model", source, found, sum(file.stat().st_size for file in files))
