"""A task made of a Python file: its examples, its reward functions, and its settings.

The file defines `train` (and perhaps `test`) and `reward(completion, example)` or a `rubric`; an
optional mapping `settings` gives what `FileSettings` lists. docs/own-task.md shows one. The
examples are read here, in the main process; the rewards run in grader workers.
"""

from collections.abc import Mapping
from typing import Annotated, TypeVar

from pydantic import Field

from germline.config import CustomTask, PythonFile
from germline.config.base import Many, Section, make_section
from germline.graders.task_file import FileRubric, TaskFile, load_task_file, task_file_error
from germline.registry import did_you_mean
from germline.tasks.row_examples import rows_to_examples, shown_answer
from germline.tasks.row_files import GivenRows, PlacedRow, placed_rows
from germline.tasks.splits import SplitTask
from germline.types import Example, GermlineError, Split

AnySettings = TypeVar("AnySettings", bound="FileSettings")

MAX_NEW_TOKENS = 128


class FileSettings(Section):
    """The mapping `settings` of a task file; the config overrides it."""

    max_new_tokens: int = Field(MAX_NEW_TOKENS, ge=1)
    stop: Annotated[tuple[str, ...], Many] = ()
    chat: bool = True
    template: str | None = None
    metric: str | None = None
    floor: float | dict[str, float] = 0.0


class PythonTask(SplitTask):
    """Rows and rewards of a file; see the module."""

    def __init__(self, config: PythonFile) -> None:
        file = load_task_file(config.path, is_of_run=config.digest is not None)
        settings = file_settings(file, FileSettings)
        grader = FileRubric.of(file, settings.floor)
        super().__init__(
            *(config, grader, grader.weights, grader.floors),
            metric=file_metric(file, settings.metric, grader.weights),
            max_new_tokens=settings.max_new_tokens,
            stop=settings.stop,
        )
        self._examples, self.digest = file_examples(file, config, settings)


def file_settings(file: TaskFile, kind: type[AnySettings]) -> AnySettings:
    """Read the mapping `settings` of a file."""
    given = getattr(file.module, "settings", {})
    if not isinstance(given, Mapping):
        raise GermlineError(f"{file.path}: `settings` must be a mapping, found {given!r:.200}")
    return make_section(kind, given, f"{file.path}: ", "settings.")


def file_metric(file: TaskFile, given: str | None, rubric: Mapping[str, float]) -> str | None:
    """Return the part that held-out scores report, if the file names one."""
    if given is not None and given not in rubric:
        raise GermlineError(
            f"{file.path}: settings['metric'] is {given!r}{did_you_mean(given, rubric)}, but the "
            f"parts are {', '.join(rubric)}: add it to `rubric`, with weight 0 to report it only"
        )
    return given


def file_examples(
    file: TaskFile, config: CustomTask, settings: FileSettings, *, by_row: bool = False
) -> tuple[dict[Split, tuple[Example, ...]], str]:
    """Return the examples of a file by split, and the digest of its code and rows."""
    for name in ("template", "chat"):
        if getattr(config, name) is None:
            config = config.model_copy(update={name: getattr(settings, name)})
    test = _rows(file, "test") if hasattr(file.module, "test") else []
    return rows_to_examples(
        GivenRows(_rows(file, "train"), test),
        config,
        # The gold answer is optional: only checks and displays need it.
        lambda row: (shown_answer(row, "answer"), row.fields),
        code=file.source,
        by_row=by_row,
    )


def _rows(file: TaskFile, split: Split) -> list[PlacedRow]:
    """Read the rows of a split: a list, or a function that returns one."""
    if not hasattr(file.module, split):
        hint = did_you_mean(split, vars(file.module))
        raise GermlineError(
            f"{file.path}: there are no examples{hint}: define `train = [...]`, rows such as "
            "{'prompt': '2 + 2?', 'answer': '4'}, or a function that returns them"
        )
    given = getattr(file.module, split)
    with task_file_error(file.path, f"the rows of `{split}` cannot be loaded"):
        found = list(given() if callable(given) else given)
    if not found:
        raise GermlineError(f"{file.path}: `{split}` holds no rows; add at least one example")
    return placed_rows(found, f"{file.path}, {split}")
