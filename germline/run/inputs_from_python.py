"""What a caller gives a run from Python (rewards, rows, a loaded model), and the config of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from germline.config import Conciseness, Config, load_config
from germline.config.loader import read_settings
from germline.config.rules import check_rules
from germline.run.loaded_model import LoadedModel
from germline.tasks.python_inputs import NO_INPUTS, PythonInputs, read_inputs
from germline.types import GermlineError


@dataclass(frozen=True)
class RunInputs:
    """What was given from Python.

    Attributes:
        task: reward functions and rows.
        model: None where the config names the model.
    """

    task: PythonInputs = NO_INPUTS
    model: LoadedModel | None = None

    def configure(self, source: Config | Mapping[str, Any] | Path | str) -> Config:
        """Return the config of a run with these inputs: it records their names and weights.

        Raises:
            GermlineError: a setting is wrong, or names what was given from Python as well.
        """
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
        if self.task.rows is not None:
            kind = task.setdefault("kind", "rows")
            if kind != "rows":
                raise GermlineError(
                    f"data: task={kind} has examples of its own: leave out data, or drop the task "
                    "from the config"
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
    """Check what a caller gave, and copy the model.

    Raises:
        GermlineError: an argument is not what it should be.
    """
    task = read_inputs(reward, data)
    if model is None and tokenizer is not None:
        raise GermlineError(
            "tokenizer: it belongs to a loaded model: give model=, or leave out tokenizer"
        )
    return RunInputs(task, None if model is None else LoadedModel(model, tokenizer))
