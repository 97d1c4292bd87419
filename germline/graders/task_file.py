"""A task file in Python: load it, and find the reward functions in it.

A file defines `reward(completion, example)`, or `rubric = {function: weight, ...}`. It is loaded in
the main process for its examples and again in every grader worker for its functions, always from
the same bytes: a worker that starts after the file was changed refuses it. The file's folder is put
at the end of the module search path, so that the file may import what lies beside it.

Known limit: modules that the file imports may change unseen.
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

from germline.graders.worker_messages import InvalidGradeError
from germline.registry import did_you_mean
from germline.types import Example, GermlineError

RewardFunction = Callable[[str, Mapping[str, Any]], float]


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
    """The reward functions of a task file as a grader, loaded anew where it is unpickled.

    Attributes:
        digest: of the file; another file in its place is refused.
        weights, floors: by function name; the floor is the worst value a function may return.
    """

    path: Path
    digest: str
    weights: Mapping[str, float]
    floors: Mapping[str, float]
    functions: Mapping[str, RewardFunction] = field(compare=False, repr=False)

    @property
    def described(self) -> str:
        """How messages name it: by the user's file, not by this class."""
        return f"the rewards of {self.path}"

    def __call__(self, text: str, example: Example) -> Mapping[str, float]:
        """Return what every function gives, each with a copy of the row of its own."""
        return {
            name: self._checked(name, function(text, copy.deepcopy(dict(example.facts))))
            for name, function in self.functions.items()
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the place of the functions, not the functions."""
        return _reload, (self.path, self.digest, dict(self.weights), dict(self.floors))

    def _checked(self, name: str, value: object) -> float:
        number = _number(value)
        if not math.isfinite(number):
            raise InvalidGradeError(
                f"must return a finite number from {name}(), returned {repr(value)[:200]}"
            )
        weight, floor = self.weights[name], self.floors[name]
        if weight * number < weight * floor:
            raise InvalidGradeError(
                f"returned {number:g} from {name}(), worse than its floor {floor:g}. What breaks "
                "the grader earns the floor, so it must be the worst value there is: write "
                f"settings = {{'floor': {{{name!r}: ...}}}} into the file"
            )
        return number


def load_task_file(path: Path) -> TaskFile:
    """Read and run a task file; what it prints goes to standard error.

    Raises:
        GermlineError: there is no such file, or running it fails; the message names the line.
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
        raise GermlineError(f"{file.path}: `rubric` weighs nothing: give a function a weight")
    return {function: float(weight) for function, weight in weighted.items()}


@contextlib.contextmanager
def task_file_error(path: Path, what: str) -> Iterator[None]:
    """Turn whatever code of a task file raises into an error that names the line.

    Raises:
        GermlineError: the code raised or left the process.
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
    """Runs the bytes that were read: no cached bytecode of an older file, none left behind."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self._source, self.path)
        return code


def _number(value: Any) -> float:
    """Read what numpy or torch call a number as well; anything else is NaN."""
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
            "and the row"
        ) from None
    if not isinstance(weight, Real) or not math.isfinite(weight):
        raise GermlineError(f"{path}: the weight of {name} must be a number, found {weight!r}")


def _reload(
    path: Path, digest: str, weights: Mapping[str, float], floors: Mapping[str, float]
) -> FileRubric:
    """Load a grader where it was sent to."""
    file = load_task_file(path)
    if file.digest != digest:
        raise GermlineError(f"{path} was changed while it was in use; stop and begin again")
    return FileRubric(
        path, digest, weights, floors, {f.__name__: f for f in reward_functions(file)}
    )
