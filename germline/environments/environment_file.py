"""An environment in a task file: the class is found in it, and loaded again in grader processes.

The file names the class, `environment = Mine`, or defines one class only that has `reset`. What
`germline.graders.task_file` says of task files holds here as well.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from germline.environments.adapters import ToolAdapter, adapt, required_fields
from germline.environments.episode import EpisodeRubric
from germline.environments.grader import EnvironmentGrader
from germline.errors import GermlineError
from germline.graders.task_file import TaskFile, task_file_error


@dataclass(frozen=True)
class FileEnvironmentGrader(EnvironmentGrader):
    """Plays the environment of a file; unpickling it finds the class in the file again."""

    factory: Callable[[], Any] = field(compare=False)  # loaded again, the class is another object
    file: TaskFile = field(kw_only=True)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the file instead of the class."""
        return make_grader, (self.file, self.rubric)


def make_grader(file: TaskFile, rubric: EpisodeRubric) -> FileEnvironmentGrader:
    """Return the grader of the environment in a file."""
    factory = environment_factory(file)
    name = f"{getattr(factory, '__name__', type(factory).__name__)} of {file.absolute}"
    return FileEnvironmentGrader(name, factory, rubric, file=file)


def environment_factory(file: TaskFile) -> Callable[[], Any]:
    """Return the class in a file that is the environment, or the function that makes one."""
    module = vars(file.module)
    given = module.get("environment")
    if isinstance(given, str):
        given = module.get(given, given)
    if callable(given):
        factory: Callable[[], Any] = given
        return factory
    if given is not None:
        raise GermlineError(
            f"{file.path}: `environment` must be a class of the file, such as environment = Mine, "
            f"found {given!r}"
        )
    found = [
        value
        for value in module.values()
        if inspect.isclass(value) and value.__module__ == file.module.__name__
        if callable(getattr(value, "reset", None))
    ]
    if len(found) == 1:
        return found[0]
    names = ", ".join(kind.__name__ for kind in found) or "none"
    raise GermlineError(
        f"{file.path}: one class must have reset(**row), with step(reply) or public methods as "
        f"tools, found {names}: define it, or name it, such as environment = Mine"
    )


def inspect_environment(
    file: TaskFile, factory: Callable[[], Any]
) -> tuple[list[str], dict[str, Callable[..., Any]]]:
    """Return the fields of a row that `reset` needs, and the tools by name, none beside `step`."""
    with task_file_error(file.path, "the environment cannot be made without arguments"):
        environment = factory()
    reset = getattr(environment, "reset", None)
    adapter = adapt(environment)
    tools = adapter.tools if isinstance(adapter, ToolAdapter) else {}
    if not callable(reset) or (isinstance(adapter, ToolAdapter) and not tools):
        raise GermlineError(
            f"{file.path}: {type(environment).__name__} must have a method reset(**row), and "
            "step(reply) or public methods that are tools"
        )
    return required_fields(reset), tools
