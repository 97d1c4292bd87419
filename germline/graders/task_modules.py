"""Task files as modules of this package, so that any process can import them by name.

A function is sent to another process as the name of its module. The processes that a reward starts
(`multiprocessing` with `spawn` or `forkserver`, process pools) import this package first, and it
finds the file by the name of the module, which is the path of the file in hexadecimal digits.
"""

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType


def module_name(path: Path) -> str:
    """Return the name of the module that a task file is."""
    return f"{__name__}.{bytes(path.absolute()).hex()}"


class _TaskFileFinder(importlib.abc.MetaPathFinder):
    """Finds the file of a module by its name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a task file; None for any other module."""
        package, _, name = fullname.rpartition(".")
        if package != __name__:
            return None
        file = Path(bytes.fromhex(name).decode())
        folder = str(file.parent)
        if folder not in sys.path:
            sys.path.append(folder)
        return importlib.util.spec_from_file_location(fullname, file)


__path__: list[str] = []  # it makes this module a package
sys.meta_path.append(_TaskFileFinder())
