"""Callbacks of a training, for logging: what they are told, and what happens when they fail.

A callback is a function of a `GenerationRecord`, or an object with any of the methods
`on_generation`, `on_held_out` and `on_end`. It is called after a generation was written to disk.
An exception in it does not end the run: the log names the callback and the error, and the callback
is not called again.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from germline.registry import did_you_mean
from germline.types import GenerationRecord, GermlineError, HeldOutScore

if TYPE_CHECKING:
    from germline.run.train_run import Training

log = logging.getLogger(__name__)

EVENTS = ("on_generation", "on_held_out", "on_end")


@runtime_checkable
class GenerationCallback(Protocol):
    """Sees every generation."""

    def on_generation(self, record: GenerationRecord) -> object:
        """See a generation, once it is on disk."""


@runtime_checkable
class HeldOutCallback(Protocol):
    """Sees every held-out score."""

    def on_held_out(self, score: HeldOutScore) -> object:
        """See the score of the start, of some generations, or of the end."""


@runtime_checkable
class EndCallback(Protocol):
    """Sees the end of a training."""

    def on_end(self, training: "Training") -> object:
        """See the training after its last generation and its report."""


Callback = GenerationCallback | HeldOutCallback | EndCallback | Callable[[GenerationRecord], object]
"""An object with some of these methods, or a function that sees every generation."""


class CallbackList:
    """The callbacks of one training.

    Raises:
        GermlineError: one of them is neither a function nor has one of these methods.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        if not isinstance(callbacks, list | tuple):
            raise GermlineError(
                f"callbacks must be a list, found {type(callbacks).__name__}: wrap it in []"
            )
        for callback in callbacks:
            _check(callback)
        self._active: list[Any] = list(callbacks)

    def call(self, event: str, value: object) -> None:
        """Tell every callback of an event that it wants to know about."""
        for callback in list(self._active):
            function = getattr(callback, event, None)
            if function is None and event == "on_generation" and not _methods(callback):
                function = callback
            if function is None:
                continue
            try:
                function(value)
            except Exception:
                self._active.remove(callback)
                log.warning(
                    "callbacks: %s of %s raised an exception and is not called again; the run "
                    "goes on",
                    *(event, _name(callback)),
                    exc_info=True,
                )


def _methods(callback: object) -> list[str]:
    return [event for event in EVENTS if hasattr(callback, event)]


def _check(callback: object) -> None:
    if _methods(callback) or (callable(callback) and not isinstance(callback, type)):
        return
    near = [name for name in dir(callback) if name.startswith("on_")]
    hint = f"; found {near[0]}{did_you_mean(near[0], EVENTS)}" if near else ""
    raise GermlineError(
        f"callbacks: {_name(callback)} is neither a function of a record nor an object with "
        f"{', '.join(EVENTS)}{hint}"
    )


def _name(callback: object) -> str:
    named = callback if hasattr(callback, "__qualname__") else type(callback)
    return str(getattr(named, "__qualname__", named))
