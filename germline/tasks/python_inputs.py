"""What a caller gives from Python instead of naming it in a config: rows, and reward functions.

A config records their names, weights and digest. The objects themselves exist in the program that
made them only, so whatever makes the task again (resume, evaluate) has to be given them again.
"""

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from germline.config.tasks import TaskBase
from germline.graders.reward_functions import (
    FunctionRubric,
    RewardFunction,
    floors_by_name,
    weighted_functions,
)
from germline.protocols import EpisodeTask, Task
from germline.tasks.row_files import GivenRows, PlacedRow, placed_rows
from germline.tasks.splits import heaviest_part
from germline.types import GermlineError

RowsLike = Iterable[Mapping[str, Any]]
"""Rows of one split: a list, a `datasets.Dataset`, or a pandas `DataFrame`."""


@dataclass(frozen=True)
class PythonInputs:
    """What was given from Python for a task."""

    rewards: Mapping[str, tuple[RewardFunction, float]] = field(default_factory=dict)
    """Name -> (function, weight); empty where the task's own rewards are used."""
    rows: GivenRows | None = None
    """None where the config names the examples."""

    @property
    def weights(self) -> dict[str, float]:
        """The weights of the reward functions, as a config records them."""
        return {name: weight for name, (_, weight) in self.rewards.items()}


NO_INPUTS = PythonInputs()


def read_inputs(reward: object = None, data: object = None) -> PythonInputs:
    """Check the rewards and rows that a caller gave, before anything is loaded."""
    rewards = {} if reward is None else weighted_functions(reward, "reward")
    return PythonInputs(rewards, None if data is None else read_rows(data))


def read_rows(data: Any) -> GivenRows:
    """Read rows: dictionaries in a list, a `datasets.Dataset` or a pandas `DataFrame`.

    A mapping (a `datasets.DatasetDict` is one) gives the splits `train` and `test`.
    """
    if not isinstance(data, Mapping):
        return GivenRows(_placed(data, "train"))
    if "train" not in data or {*data} - {"train", "test"}:
        raise GermlineError(
            f"data: give {{'train': rows, 'test': rows}}, where `test` may be left out, found the "
            f"splits {', '.join(map(repr, data)) or 'none'}"
        )
    test = _placed(data["test"], "test") if "test" in data else []
    return GivenRows(_placed(data["train"], "train"), test)


def apply_reward_functions(task: Task, config: TaskBase, inputs: PythonInputs) -> Task:
    """Return the task with the reward functions given from Python instead of its own rewards."""
    recorded, given = config.reward_functions, inputs.weights
    if recorded != given:
        raise GermlineError(
            f"task.reward_functions={dict(recorded)}, but reward gives {given or 'none'}: give "
            "the same functions and weights again, or begin a new run"
        )
    if not given:
        return task
    if isinstance(task, EpisodeTask):
        raise GermlineError(
            f"reward: the environment of task.kind={config.kind} rewards its episodes: leave out "
            f"reward={', '.join(given)}"
        )
    floors = floors_by_name(config.reward_floor, list(given), "task.reward_floor")
    changed = copy.copy(task)
    functions = {name: function for name, (function, _) in inputs.rewards.items()}
    changed.grader = FunctionRubric(functions, given, floors)
    changed.rubric, changed.floor = given, floors
    changed.metric = heaviest_part(given)
    changed.metric_higher_is_better = given[changed.metric] >= 0
    return changed


def check_rows_are_given(config: TaskBase, inputs: PythonInputs) -> None:
    """Compare the kind of a task with what was given."""
    if inputs.rows is None and config.kind == "rows":
        digest = getattr(config, "digest", None)
        which = f" (digest {digest[:12]})" if digest else ""
        raise GermlineError(
            f"task.kind=rows: the rows of this task{which} were given from Python: give them "
            "again, as in germline.resume(path, data=rows)"
        )
    if inputs.rows is not None and config.kind != "rows":
        raise GermlineError(f"data: task.kind={config.kind} has examples of its own: drop data")


def _placed(data: Any, split: str) -> list[PlacedRow]:
    """Read the rows of one split as plain dictionaries without missing fields."""
    if hasattr(data, "to_dict") and hasattr(data, "columns"):
        # A DataFrame of pandas, which marks missing values with NaN.
        data = [
            {
                name: None if isinstance(value, float) and math.isnan(value) else value
                for name, value in row.items()
            }
            for row in data.to_dict(orient="records")
        ]
    if isinstance(data, str | Mapping) or not isinstance(data, Iterable):
        raise GermlineError(
            "data: give a list of rows such as {'prompt': '2 + 2?', 'answer': '4'}, a Dataset or "
            f"a DataFrame; found {repr(data)[:80]} ({type(data).__name__})"
        )
    rows: list[PlacedRow] = [
        (place, {name: _plain(value) for name, value in row.items() if value is not None})
        for place, row in placed_rows(data, f"data, {split}")
    ]
    if not rows:
        raise GermlineError(f"data: the split {split!r} holds no rows; add at least one example")
    return rows


def _plain(value: Any) -> Any:
    """Turn arrays and scalars of numpy and torch into lists and numbers."""
    return value.tolist() if hasattr(value, "tolist") else value
