"""A model given from Python: a copy in a temporary folder, from which every engine loads it.

So the caller's model stays as it is, a loaded model passes the same checks as a folder, it has the
same bits as a run of that folder, and engines in other processes can load it too. A run records
`model: python:CLASS` and the digest of the weights; whatever loads the run again needs the model.
"""

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from germline.config import Config
from germline.types import GermlineError

PREFIX = "python:"
"""Beginning of `model` in the config of a run whose model was given from Python."""


class LoadedModel:
    """A copy of a loaded model and its tokenizer, removed with this object.

    Attributes:
        name: what a config records, such as `python:Qwen2ForCausalLM`.
        folder: of the copy.
        base: what an exported adapter names as its base model: where the model was loaded from.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        _check(model, tokenizer)
        self.name = f"{PREFIX}{type(model).__name__}"
        self.base = str(model.name_or_path or type(model).__name__)
        self.folder = Path(tempfile.mkdtemp(prefix="germline-model-"))
        self._removal = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        try:
            model.save_pretrained(self.folder)
            tokenizer.save_pretrained(self.folder)
        except OSError as error:
            self.remove()
            raise GermlineError(
                f"model: {type(model).__name__} cannot be saved in {tempfile.gettempdir()}: "
                f"{error}; set TMPDIR to a folder with more space"
            ) from error

    def remove(self) -> None:
        """Remove the copy."""
        self._removal()


def is_from_python(config: Config) -> bool:
    """Whether a config is of a run whose model was given from Python."""
    return config.model.startswith(PREFIX)


def with_model_folder(config: Config, loaded: LoadedModel | None) -> Config:
    """Return the config that loads the model: with the folder of a loaded model in its place.

    Raises:
        GermlineError: the model was given from Python and is missing, or it is given without need.
    """
    if loaded is None:
        check_model_is_named(config)
        return config
    if not is_from_python(config):
        raise GermlineError(
            f"model: a loaded model was given, but the run has model={config.model}: leave out "
            "model and tokenizer"
        )
    return config.model_copy(update={"model": str(loaded.folder)})


def check_model_is_named(config: Config) -> None:
    """Refuse a model that only the program that loaded it has.

    Raises:
        GermlineError: the model was given from Python.
    """
    if is_from_python(config):
        given = [
            *(["reward=reward"] if config.task.reward_functions else []),
            *(["data=rows"] if config.task.kind == "rows" else []),
        ]
        # The command line has neither the rows nor the functions that a resumed run needs.
        once = f"germline.resume(path, ['model=FOLDER'], {', '.join(given)})"
        raise GermlineError(
            f"model={config.model}: this model was given from Python and is not in the run: give "
            "it again, as in germline.resume(path, model=model, tokenizer=tokenizer), "
            "germline.evaluate or germline.export; or save it with "
            "model.save_pretrained('FOLDER') and tokenizer.save_pretrained('FOLDER'), and name "
            f"the folder once: {once if given else '`germline resume RUN model=FOLDER`'}"
        )


def _check(model: Any, tokenizer: Any) -> None:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    if not isinstance(model, PreTrainedModel):
        adapted = hasattr(model, "merge_and_unload")
        remedy = (
            "merge the adapter first, model.merge_and_unload(), or name its folder as "
            "space.init_adapter"
            if adapted
            else "a folder or a Hugging Face id goes into the config: {'model': 'FOLDER'}"
        )
        raise GermlineError(
            "model: give a loaded transformers model (PreTrainedModel), found "
            f"{repr(model)[:80] if isinstance(model, str) else type(model).__name__}: {remedy}"
        )
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise GermlineError(
            f"tokenizer: a loaded model needs its tokenizer, found {type(tokenizer).__name__}: "
            "give tokenizer=AutoTokenizer.from_pretrained(...)"
        )
