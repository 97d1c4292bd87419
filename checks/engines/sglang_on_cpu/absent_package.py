"""A package that is not there: every name in it can be imported, and calling one of them fails.

SGLang imports sgl_kernel and torchvision whatever it is going to run. There is no sgl_kernel for
CPUs without AMX, and torchvision's wheels need CUDA beside the CPU build of torch; a text model on
such a CPU calls neither. Nothing is imitated, so nothing can be silently wrong.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn


class Absent:
    """A name of a package that is not there; so are its attributes, and it cannot be called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> "Absent":
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Absent(f"{self._name}.{attribute}")

    def __call__(self, *_arguments: object, **_named: object) -> NoReturn:
        """Fail: the caller needs the package."""
        raise NotImplementedError(f"{self._name} is called, but this environment has none")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules inside an absent package, at any depth."""

    def __init__(self, package: str) -> None:
        self._inside = f"{package}."

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Answer for what is inside the package."""
        if not name.startswith(self._inside):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Make a module whose names are all absent."""
        module = ModuleType(spec.name)
        _let_all_names_in(module)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def declare_absent(package: str) -> None:
    """Let everything in a package that is being imported be imported; its `__init__` calls this."""
    _let_all_names_in(sys.modules[package])
    sys.meta_path.append(_Finder(package))


def _let_all_names_in(module: ModuleType) -> None:
    whole = Absent(module.__name__)
    module.__dict__["__getattr__"] = lambda name: getattr(whole, name)
