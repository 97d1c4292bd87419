"""Base classes of an engine or a fleet around another one, which change some methods, for tests.

`EngineWrapper` has every member of the protocol and passes each call on to `inner`; a subclass
defines only the methods that it changes. The delegating members are made from the protocol, so a
member that is added to it needs no line here.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from germline.fleet import Fleet, LocalFleet
from germline.protocols import Engine

WrapperClass = TypeVar("WrapperClass", bound=type)


class _Wrapper:
    """An object around another one of the same protocol."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    if TYPE_CHECKING:  # the members are made at run time; a type checker takes them from here

        def __getattr__(self, name: str) -> Any: ...


def _delegates(protocol: type) -> Callable[[WrapperClass], WrapperClass]:
    """Return a class decorator that takes every member of a protocol from `self.inner`."""

    def decorate(wrapper: WrapperClass) -> WrapperClass:
        for name in vars(protocol):
            if not name.startswith("_"):
                setattr(wrapper, name, property(attrgetter(f"inner.{name}")))
        return wrapper

    return decorate


@_delegates(Engine)
class EngineWrapper(_Wrapper):
    """An engine around another one: a subclass defines the methods that it changes."""


class FleetWrapper(LocalFleet):
    """A fleet around the engine of another one: a subclass defines the methods that it changes."""

    def __init__(self, inner: Fleet) -> None:
        assert isinstance(inner, LocalFleet)
        super().__init__(inner.engine, inner.graders, inner.microbatch)
        self.inner = inner
