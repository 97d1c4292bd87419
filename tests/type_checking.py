"""Checks of types and shapes while tests run, at a cost that tests can bear.

The import hook of `--jaxtyping-packages` wraps every function of germline in `jaxtyping.jaxtyped`,
which binds the arguments and checks them twice, in every call. With that, tests took three times
their time. `install` puts a lighter function in its place: beartype checks the parameters and the
result once, and shapes are only prepared for where a signature names an array. In a test, a
function with arrays is checked in its first `CHECKED_FIRST` calls, then in one of `THEN_ONE_OF`.
"""

import inspect
from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, get_args

import jaxtyping
from jaxtyping import _decorator as decorator
from jaxtyping._storage import pop_shape_memo, push_shape_memo

CHECKED_FIRST = 50
THEN_ONE_OF = 10
calls: Counter[object] = Counter()
"""Of every function since a test began; what is checked depends on the test alone."""

TypeChecker = Callable[[Any], Any]
_of_jaxtyping = decorator.jaxtyped


def install() -> None:
    """Let the import hook use `checked`; call it before germline is imported."""
    for module in (jaxtyping, decorator):
        vars(module)["jaxtyped"] = checked


def checked(target: Any = None, *, typechecker: TypeChecker) -> Any:
    """Let a function check its types and shapes; of a class, `__init__` where it is generated."""
    if target is None:
        return partial(checked, typechecker=typechecker)
    if not inspect.isfunction(target):
        return _of_jaxtyping(target, typechecker=typechecker)
    hints = target.__annotations__
    # A name that is only imported for static type checkers is unknown here and may be anything.
    target.__annotations__ = {
        name: decorator._destring_annotation(hint, target.__globals__)
        for name, hint in hints.items()
    }
    has_shapes = any(map(names_an_array, target.__annotations__.values()))
    function = typechecker(target)
    target.__annotations__ = function.__annotations__ = hints
    return _with_shapes(function, target) if has_shapes else function


def names_an_array(annotation: Any) -> bool:
    """Tell whether a type is that of an array with a shape, or contains one."""
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(names_an_array, get_args(annotation)))


def _with_shapes(function: Callable[..., Any], unchecked: Callable[..., Any]) -> Callable[..., Any]:
    """Let the names of axes have one size each within a call.

    Sizes may be given by arguments, as in `Float32[np.ndarray, "rows {count}"]`.
    """
    parameters = inspect.signature(unchecked).parameters.values()
    names = [parameter.name for parameter in parameters]
    defaults = {one.name: one.default for one in parameters if one.default is not one.empty}

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        calls[function] += 1
        if calls[function] > CHECKED_FIRST and calls[function] % THEN_ONE_OF:
            return unchecked(*args, **kwargs)
        push_shape_memo({**defaults, **dict(zip(names, args, strict=False)), **kwargs})
        try:
            return function(*args, **kwargs)
        finally:
            pop_shape_memo()

    return call
