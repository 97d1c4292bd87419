"""A task file in Python: load it, and find the reward functions in it.

A file defines `reward(completion, example)`, or `rubric = {function: weight, ...}`; functions may
have the signature of TRL (`germline.graders.reward_functions`). The file is loaded in the main
process for its examples and again in every grader worker for its functions, always from the same
bytes: a worker that starts after the file was changed refuses it. The file's folder is put at the
end of the module search path, so that the file can import modules of its folder.

A function is sent to another process as the name of its module. The processes that a reward starts
(`multiprocessing` with `spawn` or `forkserver`, process pools) import this module, as it is the
package of all task files, and it finds a file by the name of its module: its path in hexadecimal
digits.

Known limit: a change of a module that the file imports is not noticed.
"""

import contextlib
import copy
import hashlib
import importlib.abc
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from germline.errors import GermlineError
from germline.example import Example
from germline.graders.reward_functions import (
    FunctionRubric,
    RewardFunction,
    floors_by_name,
    weighted_functions,
)
from germline.registry import did_you_mean


@dataclass(frozen=True)
class TaskFile:
    """A task file that was read and run; unpickling it reads and runs the same bytes again."""

    path: Path = field(compare=False)
    absolute: Path = field(compare=False)
    source: bytes
    module: ModuleType = field(compare=False, repr=False)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the file."""
        return hashlib.sha256(self.source).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path and the digest."""
        return load_task_file, (self.absolute, self.digest)


@dataclass(frozen=True)
class FileRubric(FunctionRubric):
    """The reward functions of a task file as a grader; unpickling it finds them in the file."""

    file: TaskFile

    @classmethod
    def of(cls, file: TaskFile, floor: float | Mapping[str, float]) -> "FileRubric":
        """Return the grader of a file whose functions have this floor, or these by name."""
        given = reward_functions(file)
        floors = floors_by_name(floor, tuple(given), f"{file.path}: settings['floor']")
        functions = {name: function for name, (function, _) in given.items()}
        return cls(functions, {name: weight for name, (_, weight) in given.items()}, floors, file)

    @property
    def described(self) -> str:
        """The name of the grader in messages: the user's file and not this class."""
        return f"the rewards of {self.file.absolute}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the file instead of the functions; the file may compute other weights there."""
        find = partial(_find_functions, is_only_reward=self.is_only_reward)
        return find, (self.file, dict(self.weights), dict(self.floors))

    def _row(self, example: Example) -> dict[str, Any]:
        """Return a copy of the row as the file gave it."""
        return copy.deepcopy(dict(example.facts))


def _find_functions(
    file: TaskFile,
    weights: Mapping[str, float],
    floors: Mapping[str, float],
    *,
    is_only_reward: bool,
) -> FileRubric:
    functions = {name: function for name, (function, _) in reward_functions(file).items()}
    return FileRubric(functions, weights, floors, file, is_only_reward=is_only_reward)


def load_task_file(path: Path, digest: str | None = None, *, is_of_run: bool = False) -> TaskFile:
    """Read a task file, of this digest, and execute it; what it prints goes to standard error.

    Where it is missing, the advice depends on whether a run was trained on it.
    """
    absolute = path.absolute()  # the file may change the working directory
    try:
        source = path.read_bytes()
    except OSError as error:
        advice = "restore the file of this run" if is_of_run else "`germline new NAME` writes one"
        raise GermlineError(
            f"task.path: {str(path)!r} cannot be read: {error.strerror} (relative paths start at "
            f"{Path.cwd()}); {advice}"
        ) from None
    if digest not in (None, hashlib.sha256(source).hexdigest()):
        raise GermlineError(f"{path} was changed while it was in use; start the command again")
    name = module_name(path)
    loader = _FromBytes(name, str(path), source)
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module  # dataclasses and pickle look their module up by name
    with task_file_error(path, "cannot be loaded"):
        loader.exec_module(module)
    return TaskFile(path, absolute, source, module)


def reward_functions(file: TaskFile) -> dict[str, tuple[RewardFunction, float]]:
    """Return the reward functions of a file and their weights, by name."""
    reward: Any = getattr(file.module, "reward", None)
    rubric: Any = getattr(file.module, "rubric", None)
    if (reward is None) == (rubric is None):
        found = "neither" if reward is None else "both"
        hint = "" if reward is not None else did_you_mean("reward", vars(file.module))
        raise GermlineError(
            f"{file.path}: define `reward(completion, example)` or `rubric = {{function: weight}}`,"
            f" found {found}{hint}"
        )
    if rubric is not None and not (isinstance(rubric, Mapping) and rubric):
        raise GermlineError(f"{file.path}: `rubric` must be {{function: weight}}, found {rubric!r}")
    return weighted_functions(reward if rubric is None else rubric, str(file.path))


@contextlib.contextmanager
def task_file_error(path: Path, what: str) -> Iterator[None]:
    """Turn any exception that code of a task file raises into an error that names the line."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""  # a zero byte has none
        raise GermlineError(f"{path}{line}: {what}: {type(error).__name__}: {error.msg}") from None
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        place = f"{path}, line {lines[-1]}" if lines else str(path)
        text = f"{place}: {what}: {type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError):
            text += f": install it for the Python that runs germline ({sys.executable})"
        raise GermlineError(text) from error


class _FromBytes(SourceFileLoader):
    """Executes the bytes that were read: it neither reads nor writes cached bytecode."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self._source, self.path)
        return code


def module_name(path: Path) -> str:
    """Return the name of the module that a task file is."""
    return f"{__name__}.{bytes(path.absolute()).hex()}"


class _TaskFileFinder(importlib.abc.MetaPathFinder):
    """Finds the file of a module by its name."""

    def find_spec(
        self, fullname: str, path: object, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a task file; None for any other module."""
        package, _, name = fullname.rpartition(".")
        if package != __name__:
            return None
        file = Path(bytes.fromhex(name).decode())
        folder = str(file.parent)
        if folder not in sys.path:
            sys.path.append(folder)
        return spec_from_file_location(fullname, file)


__path__: list[str] = []  # it makes this module a package
sys.meta_path.append(_TaskFileFinder())
