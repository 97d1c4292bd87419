"""Tasks: examples to answer and how completions are scored; one file per task."""

from germline import registry
from germline.config import TaskConfig
from germline.protocols import Task
from germline.tasks.prompt_settings import apply_prompt_settings


def make_task(config: TaskConfig) -> Task:
    """Construct the task that a config section names."""
    task: Task = registry.create("task", config)
    return apply_prompt_settings(task, config)
