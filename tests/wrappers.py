"""Base classes of an engine or a fleet around another one, which change some methods, for tests.

`EngineWrapper` and `FleetWrapper` have every member of their protocol and pass
each call on to `inner`; a subclass defines only the methods that it changes. The delegating members
are made from the protocol, so a member that is added to a protocol needs no line here.
"""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from germline.protocols import Engine, Fleet

Inner = TypeVar("Inner")
WrapperClass = TypeVar("WrapperClass", bound=type)


class _Wrapper(Generic[Inner]):
    """An object around another one of the same protocol."""

    def __init__(self, inner: Inner) -> None:
        self.inner = inner

    if TYPE_CHECKING:  # the members are made at run time; a type checker takes them from here

        def __getattr__(self, name: str) -> Any: ...


def _delegates(protocol: type) -> Callable[[WrapperClass], WrapperClass]:
    """Return a class decorator that passes every member of a protocol on to `self.inner`."""

    def decorate(wrapper: WrapperClass) -> WrapperClass:
        for name, member in vars(protocol).items():
            if not name.startswith("_"):
                setattr(wrapper, name, _delegating(name, member))
        return wrapper

    return decorate


def _delegating(name: str, member: Any) -> Any:
    if isinstance(member, property):
        return property(lambda self: getattr(self.inner, name), doc=member.__doc__)

    @wraps(member)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner, name)(*args, **kwargs)

    return call


@_delegates(Engine)
class EngineWrapper(_Wrapper[Engine]):
    """An engine around another one: a subclass defines the methods that it changes."""


@_delegates(Fleet)
class FleetWrapper(_Wrapper[Fleet]):
    """A fleet around another one: a subclass defines the methods that it changes."""
