"""Check that a model folder holds one complete set of weights, and say which files are read.

transformers reads the first of these that a folder has: `model.safetensors`, the shards that
`model.safetensors.index.json` lists, `pytorch_model.bin`, the shards of
`pytorch_model.bin.index.json`. Other sets of weights in the same folder, which may hold other
values, are not read: a warning names both.

Limits: only folders are checked. What a hub id lacks, transformers reports itself.
"""

import json
import logging
from pathlib import Path

from transformers import PreTrainedModel
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)

from germline.types import GermlineError

log = logging.getLogger(__name__)

IN_ORDER = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
"""Files that hold or list the weights; transformers reads the first that exists."""


def check_files(source: str) -> None:
    """Check that no shard is missing, and warn of sets of weights that are not read.

    Raises:
        GermlineError: the index that is read lists a file that the folder does not hold.
    """
    folder = Path(source).expanduser()
    present = [name for name in IN_ORDER if (folder / name).is_file()]
    if not present:
        return
    read, *ignored = present
    if read.endswith(".index.json"):
        _check_shards(source, folder, read)
    if ignored:
        log.warning(
            "model: %r holds the weights more than once: %s is read, %s is not; remove the files "
            "that are out of date",
            source,
            read,
            " and ".join(ignored),
        )


def _check_shards(source: str, folder: Path, index: str) -> None:
    shards = sorted(set(json.loads((folder / index).read_text("utf-8"))["weight_map"].values()))
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise GermlineError(
            f"model: {source!r} lacks {', '.join(missing[:3])}{more}, of the {len(shards)} files "
            f"that {index} lists: copy what is missing into the folder, or get the folder again"
        )


def check_tied(source: str, model: PreTrainedModel) -> None:
    """Check that weights which config.json says are one tensor were not stored as two.

    transformers loads both and goes on. Older versions, inference servers and an export would keep
    one of them only, so the same folder would be two models.

    Raises:
        GermlineError: two tensors that are tied have different values.
    """
    tied = model.get_expanded_tied_weights_keys(all_submodels=True)
    for name, other in tied.items():
        if model.get_parameter_or_buffer(name) is not model.get_parameter_or_buffer(other):
            raise GermlineError(
                f"model: {source!r} holds {name} and {other} with different values, but its "
                "config.json says tie_word_embeddings=true, that they are one tensor: set "
                f"tie_word_embeddings to false in config.json if {name} was trained by itself, or "
                f"else remove {name} from the files of weights"
            )
