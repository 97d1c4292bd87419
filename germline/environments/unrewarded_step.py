"""Find a `step` that gives no reward, from its source: its class must have `get_reward` instead.

An episode that is cut before any reward earns the floor, which is right where the reward comes with
the last step only. Where no step gives one, every episode would earn the floor without a word.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator

from germline.environments.step_result import StepResult


def unrewarded_line(environment: object) -> int | None:
    """Return the line of a `step` whose every result is written without rewards.

    A result that `step` computes, or takes from another method, may have rewards: then, and where
    the class has `get_reward`, the line is None.
    """
    step = getattr(type(environment), "step", None)
    if hasattr(environment, "get_reward") or not inspect.isfunction(step):
        return None
    try:
        lines, first = inspect.getsourcelines(step)
        (definition,) = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, SyntaxError, ValueError):  # no source, or source that is no definition alone
        return None
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    results = [node.value for node in _own_nodes(definition) if isinstance(node, ast.Return)]
    is_plain = not definition.decorator_list and step.__globals__.get("StepResult") in (
        None,
        StepResult,
    )
    if not (is_plain and results and all(map(_lacks_rewards, results))):
        return None
    return first


def _own_nodes(definition: ast.AST) -> Iterator[ast.AST]:
    """Walk a function without the functions inside it."""
    for node in ast.iter_child_nodes(definition):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from _own_nodes(node)


def _lacks_rewards(result: ast.expr | None) -> bool:
    """Whether a result is written as `StepResult` or a tuple whose rewards are None."""
    if isinstance(result, ast.IfExp):
        return _lacks_rewards(result.body) and _lacks_rewards(result.orelse)
    if isinstance(result, ast.Tuple):
        elements, named = result.elts, []
    elif isinstance(result, ast.Call) and ast.unparse(result.func).endswith("StepResult"):
        elements, named = result.args, result.keywords
    else:
        return False
    if any(isinstance(element, ast.Starred) for element in elements) or len(elements) > 3:
        return False
    given = elements[2:] + [word.value for word in named if word.arg in ("rewards", None)]
    return all(isinstance(value, ast.Constant) and value.value is None for value in given)
