"""A task file in Python: load it, and find the reward functions in it.

A file defines `reward(completion, example)`, or `rubric = {function: weight, ...}`. It is loaded in
the main process for its examples and again in every grader worker for its functions, always from
the same bytes: a worker that starts after the file was changed refuses it. The file's folder is put
at the end of the module search path, so that the file can import modules of its folder.

A function of a rubric that raises an exception earns its floor; the other functions keep their
values. A timeout, lack of memory and the death of the worker process concern the whole completion:
all functions then earn their floors.

Known limit: a change of a module that the file imports is not noticed.
"""

import contextlib
import copy
import hashlib
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from numbers import Real
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from germline.graders.worker_messages import InvalidGradeError, PartsFailedError
from germline.registry import did_you_mean
from germline.types import Example, GermlineError

RewardFunction = Callable[[str, Mapping[str, Any]], float]

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

LONGEST_MESSAGE = 200
"""Characters of an exception's message that are kept in the reason of a failure."""


@dataclass(frozen=True)
class TaskFile:
    """A task file that was read and run."""

    path: Path
    source: bytes
    module: ModuleType

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the file."""
        return hashlib.sha256(self.source).hexdigest()


@dataclass(frozen=True)
class FileRubric:
    """The reward functions of a task file as a grader; unpickling it loads the file again.

    Attributes:
        path: absolute.
        digest: of the file; a file with another digest is refused.
        weights: by function name.
        floors: by function name: the worst value a function may return.
        functions: by function name.
    """

    path: Path
    digest: str
    weights: Mapping[str, float]
    floors: Mapping[str, float]
    functions: Mapping[str, RewardFunction] = field(compare=False, repr=False)

    @property
    def described(self) -> str:
        """The name of the grader in messages: the user's file and not this class."""
        return f"the rewards of {self.path}"

    def __call__(self, text: str, example: Example) -> Mapping[str, float]:
        """Return the value of every function; each function gets its own copy of the row.

        Raises:
            PartsFailedError: some functions raised an exception.
            InvalidGradeError: a function returned a value that is no reward.
        """
        values: dict[str, float] = {}
        failures: list[str] = []
        for name, function in self.functions.items():
            try:
                value = function(text, copy.deepcopy(dict(example.facts)))
            except (MemoryError, InvalidGradeError):
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001 - any failure counts against the text
                failures.append(self._failure(name, error))
            else:
                values[name] = self._checked(name, value)
        if failures:
            raise PartsFailedError(values, "; ".join(failures))
        return values

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path of the file instead of the functions."""
        return _reload, (self.path, self.digest, dict(self.weights), dict(self.floors))

    def _failure(self, name: str, error: BaseException) -> str:
        """Describe an exception of a function: its type, its message, and the line of the file."""
        function = f"{name}(): " if len(self.functions) > 1 else ""
        message = str(error)[:LONGEST_MESSAGE]
        lines = [
            line
            for frame, line in traceback.walk_tb(error.__traceback__)
            if Path(frame.f_code.co_filename).name == self.path.name
        ]
        place = f" ({self.path.name}, line {lines[-1]})" if lines else ""
        hint = _trl_hint(self.functions[name])
        return f"{function}{type(error).__name__}: {message}{place}{hint}"

    def _checked(self, name: str, value: object) -> float:
        number = _number(value)
        if not math.isfinite(number):
            raise InvalidGradeError(
                f"must return a finite number from {name}(), returned {repr(value)[:200]}"
                f"{_trl_hint(self.functions[name])}"
            )
        weight, floor = self.weights[name], self.floors[name]
        if weight * number < weight * floor:
            raise InvalidGradeError(
                f"returned {number:g} from {name}(), worse than its floor {floor:g}. A completion "
                "that cannot be graded earns the floor, so the floor must be the worst value that "
                f"the function can return: write settings = {{'floor': {{{name!r}: ...}}}} into "
                "the file"
            )
        return number


def load_task_file(path: Path) -> TaskFile:
    """Read a task file and execute it; what it prints goes to standard error.

    Raises:
        GermlineError: there is no such file, or executing it fails; the message names the line.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise GermlineError(
            f"task.path: {str(path)!r} cannot be read: {error.strerror} (relative paths start at "
            f"{Path.cwd()}); `germline new task NAME` writes a starting point"
        ) from None
    name = f"germline_task_{path.stem}"
    loader = _FromBytes(name, str(path), source)
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module  # dataclasses look their module up by name
    with task_file_error(path, "cannot be loaded"):
        loader.exec_module(module)
    return TaskFile(path, source, module)


def reward_functions(file: TaskFile) -> dict[RewardFunction, float]:
    """Return the reward functions of a file with their weights.

    Raises:
        GermlineError: there are none, or they are not functions of (completion, example).
    """
    reward: Any = getattr(file.module, "reward", None)
    rubric: Any = getattr(file.module, "rubric", None)
    if (reward is None) == (rubric is None):
        found = "neither" if reward is None else "both"
        hint = did_you_mean("reward", vars(file.module)) if reward is None else ""
        raise GermlineError(
            f"{file.path}: define `reward(completion, example)` or `rubric = {{function: weight}}`,"
            f" found {found}{hint}"
        )
    weighted = {reward: 1.0} if rubric is None else rubric
    if not isinstance(weighted, Mapping) or not weighted:
        raise GermlineError(
            f"{file.path}: `rubric` must be {{function: weight}}, found {weighted!r}"
        )
    for function, weight in weighted.items():
        _check(file.path, function, weight)
    names = [function.__name__ for function in weighted]
    if len(set(names)) < len(names):
        raise GermlineError(
            f"{file.path}: the functions of `rubric` must have different names, found "
            f"{', '.join(names)}"
        )
    if not any(weighted.values()):
        raise GermlineError(f"{file.path}: `rubric` has no weight above 0: give a function one")
    return {function: float(weight) for function, weight in weighted.items()}


@contextlib.contextmanager
def task_file_error(path: Path, what: str) -> Iterator[None]:
    """Turn any exception that code of a task file raises into an error that names the line.

    Raises:
        GermlineError: the code raised an exception or called `sys.exit`.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except SyntaxError as error:
        raise GermlineError(
            f"{path}, line {error.lineno}: {what}: {type(error).__name__}: {error.msg}"
        ) from None
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        place = f"{path}, line {lines[-1]}" if lines else str(path)
        raise GermlineError(f"{place}: {what}: {type(error).__name__}: {error}") from error


class _FromBytes(SourceFileLoader):
    """Executes the bytes that were read: it neither reads nor writes cached bytecode."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self._source, self.path)
        return code


def _number(value: Any) -> float:
    """Convert a value to a float, scalars of numpy and torch included; anything else is NaN."""
    try:
        return math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _check(path: Path, function: object, weight: object) -> None:
    name = getattr(function, "__name__", None)
    if not callable(function) or not isinstance(name, str) or not name.isidentifier():
        raise GermlineError(
            f"{path}: a reward must be a function with a name, found {function!r}: write it with "
            "def name(completion, example)"
        )
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise GermlineError(f"{path}: {name}() must return a number, but it is async or yields")
    try:
        signature = inspect.signature(function)
        signature.bind("completion", {})
    except TypeError:
        raise GermlineError(
            f"{path}: {name}{signature} must take (completion, example): the text the model wrote "
            f"and the row{_trl_hint(function)}"
        ) from None
    if not isinstance(weight, Real) or not math.isfinite(weight):
        raise GermlineError(f"{path}: the weight of {name} must be a number, found {weight!r}")


def _trl_hint(function: Callable[..., Any]) -> str:
    """Explain how to adapt a reward of TRL's shape; empty for any other function."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ""
    if "completions" not in parameters:
        return ""
    named = [parameter.name for parameter in parameters.values() if parameter.kind in NAMED]
    columns = {one: "prompt" if one == "prompts" else one for one in named if one != "completions"}
    arguments = ["completions=[completion]"]
    arguments += [f"{one}=[example[{column!r}]]" for one, column in columns.items()]
    return (
        f". {function.__name__}() has the parameters of a TRL reward, which scores a list of "
        "completions, but germline calls a reward with one completion and its row: rename it to "
        "trl_reward and add def reward(completion, example): "
        f"return trl_reward({', '.join(arguments)})[0]"
    )


def _reload(
    path: Path, digest: str, weights: Mapping[str, float], floors: Mapping[str, float]
) -> FileRubric:
    """Load the grader in the process that unpickles it."""
    file = load_task_file(path)
    if file.digest != digest:
        raise GermlineError(f"{path} was changed while it was in use; start the command again")
    return FileRubric(
        path, digest, weights, floors, {f.__name__: f for f in reward_functions(file)}
    )
