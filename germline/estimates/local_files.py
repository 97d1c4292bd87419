"""What of a model is on this machine; nothing here uses the network."""

from pathlib import Path

from transformers.utils.hub import cached_file

from germline.config.file_paths import is_gguf
from germline.engines.checkpoint_files import weight_files
from germline.engines.pretrained import unpacked_source
from germline.nano import NANO_DIR


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


def local_weight_bytes(source: str) -> int | None:
    """Return the size of the weights of a model on this machine; None if they are not here."""
    if is_gguf(source):
        return Path(source).expanduser().stat().st_size
    folder = local_model_folder(source)
    files = [] if folder is None else weight_files(folder)
    return sum(file.stat().st_size for file in files) or None
