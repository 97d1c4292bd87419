"""Tasks: examples to answer and how completions are scored; one file per task."""

from typing import Any

from germline import registry
from germline.config import TaskConfig
from germline.protocols import Task
from germline.tasks.python_inputs import (
    NO_INPUTS,
    PythonInputs,
    apply_reward_functions,
    check_rows_are_given,
)
from germline.tasks.task_settings import PROMPT_SETTINGS, add_scorer_parts, apply_prompt_settings


def make_task(config: TaskConfig, inputs: PythonInputs = NO_INPUTS) -> Task:
    """Construct the task that a config section names, with what was given from Python."""
    check_rows_are_given(config, inputs)
    rows: dict[str, Any] = {} if inputs.rows is None else {"rows": inputs.rows}
    task: Task = registry.create("task", config, **rows)
    task = apply_reward_functions(task, config, inputs)
    if config.scorers or config.kl_coef is not None:
        task = add_scorer_parts(task, config)
    if config.changed(*PROMPT_SETTINGS):
        task = apply_prompt_settings(task, config)
    return task
