"""What a caller gives a run from Python: rewards, rows and a loaded model, and the config of it.

A loaded model is saved in a temporary folder, from which every engine loads it. So the caller's
model stays as it is, passes the same checks and has the same bits as a folder, and engines in other
processes can load it too. A run records `model: python:CLASS` and the digest of the weights;
whatever loads the run again needs the model.
"""

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from germline.config import Conciseness, Config, load_config
from germline.config.loader import read_settings
from germline.config.rules import check_rules
from germline.environments.tools import is_unicode
from germline.tasks.python_inputs import NO_INPUTS, PythonInputs, read_inputs
from germline.types import GermlineError

PREFIX = "python:"
"""Beginning of `model` in the config of a run whose model was given from Python."""


class LoadedModel:
    """A copy of a loaded model and its tokenizer, removed with this object.

    Attributes:
        name: what a config records, such as `python:Qwen2ForCausalLM`.
        folder: of the copy.
        base: what an exported adapter names as its base model: where the model was loaded from.

    Raises:
        GermlineError: these are no loaded model and tokenizer, or cannot be saved.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        from transformers import PreTrainedModel, PreTrainedTokenizerBase

        if not isinstance(model, PreTrainedModel):
            raise GermlineError(
                f"model: give a loaded transformers model, found {model!r:.80}: a folder or a "
                "Hugging Face id goes into the config, and an adapter is merged first "
                "(merge_and_unload) or named as space.init_adapter"
            )
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise GermlineError(
                f"tokenizer: a loaded model needs its tokenizer, found {tokenizer!r:.80}: give "
                "tokenizer=AutoTokenizer.from_pretrained(...)"
            )
        self.name = f"{PREFIX}{type(model).__name__}"
        self.base = str(model.name_or_path or type(model).__name__)
        self.folder = Path(tempfile.mkdtemp(prefix="germline-model-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        try:
            model.save_pretrained(self.folder)
            tokenizer.save_pretrained(self.folder)
        except OSError as error:
            raise GermlineError(
                f"model: {type(model).__name__} cannot be saved in {tempfile.gettempdir()}: "
                f"{error}; set TMPDIR to a folder with more space"
            ) from error


@dataclass(frozen=True)
class RunInputs:
    """What was given from Python."""

    task: PythonInputs = NO_INPUTS
    model: LoadedModel | None = None

    def configure(self, source: Config | Mapping[str, Any] | Path | str) -> Config:
        """Return the config of a run with these inputs: it records their names and weights."""
        if self.task == NO_INPUTS and self.model is None:
            if not isinstance(source, Config):
                return load_config(source)
            check_rules(source)
            return source
        values = read_settings(source) if not isinstance(source, Config) else source.model_dump()
        task = values.get("task", {})
        if isinstance(source, Config) and source.task == Conciseness():
            task = {}  # the default, which nobody asked for
        task = {"kind": task} if isinstance(task, str) else dict(task)
        if self.task.rows is not None and task.setdefault("kind", "rows") != "rows":
            raise GermlineError(
                f"data: task={task['kind']} has examples of its own: leave out data, or drop the "
                "task from the config"
            )
        if self.task.rewards:
            task["reward_functions"] = self.task.weights
        values = {**values, "task": task or "conciseness"}
        if self.model is not None:
            if values.get("model", "nano") != "nano":
                raise GermlineError(
                    f"model: a loaded model was given, and the config has model={values['model']}: "
                    "drop one of them"
                )
            values["model"] = self.model.name
        return load_config(values)


NOTHING_GIVEN = RunInputs()


def read_run_inputs(
    reward: object = None, data: object = None, model: object = None, tokenizer: object = None
) -> RunInputs:
    """Check what a caller gave, and copy the model."""
    task = read_inputs(reward, data)
    if model is None and tokenizer is not None:
        raise GermlineError(
            "tokenizer: it belongs to a loaded model: give model=, or leave out tokenizer"
        )
    return RunInputs(task, None if model is None else LoadedModel(model, tokenizer))


def check_texts(name: str, values: object) -> None:
    """Refuse a text alone, which would be read as its characters, and unpaired surrogates."""
    texts = values if isinstance(values, Sequence) and not isinstance(values, str) else [None]
    if not all(isinstance(text, str) and is_unicode(text) for text in texts):
        raise GermlineError(f"{name} must be a list of Unicode texts, found {values!r:.80}")


def check_choice(name: str, value: object, choices: Sequence[str | None]) -> None:
    """Check that an argument is one of the choices, of which None is the default."""
    if value not in choices:
        raise GermlineError(f"{name} must be {' or '.join(map(repr, choices))}, found {value!r}")


def check_limit(limit: object) -> None:
    """Refuse a number of examples below 1: a negative one would leave the last examples out."""
    if limit is not None:
        check_count("limit", limit, ", or None for all")


def check_count(name: str, count: object, otherwise: str = "") -> None:
    """Refuse an argument that is no number from 1 on."""
    if not isinstance(count, int) or count < 1:
        raise GermlineError(f"{name} must be a number from 1 on{otherwise}, found {count!r}")


def is_from_python(config: Config) -> bool:
    """Whether a config is of a run whose model was given from Python."""
    return config.model.startswith(PREFIX)


def with_model_folder(config: Config, loaded: LoadedModel | None) -> Config:
    """Return the config that loads the model: with the folder of a loaded model in its place."""
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
    """Refuse a model that only the program that loaded it has."""
    if not is_from_python(config):
        return
    given = [
        *(["reward=reward"] if config.task.reward_functions else []),
        *(["data=rows"] if config.task.kind == "rows" else []),
    ]
    # The command line has neither the rows nor the functions that a resumed run needs.
    once = f"germline.resume(path, ['model=FOLDER'], {', '.join(given)})"
    raise GermlineError(
        f"model={config.model}: this model was given from Python and is not in the run: give it "
        "again (model=model, tokenizer=tokenizer), or save it with save_pretrained('FOLDER') and "
        f"name the folder once: {once if given else '`germline resume RUN model=FOLDER`'}"
    )
