"""Lets modules of a model run other forwards for a while."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn


@contextmanager
def replaced_forwards(forwards: Iterable[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    """Replace the forwards of modules during a `with` block.

    Hooks would do the same, but one costs more than a small correction of a layer.
    """
    with ExitStack() as restored:
        for module, forward in forwards:
            module.forward = forward
            restored.callback(delattr, module, "forward")
        yield
