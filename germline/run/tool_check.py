"""Check the tools of an environment: each is called once, with arguments made from its signature.

An environment that ignores replies without a call hides a tool that fails, so each tool is called
in an episode of its own, in a grader process and under the time limit of a turn.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from germline.config import Config
from germline.environments.adapters import ToolAdapter, adapt
from germline.environments.close_environment import close_environment
from germline.environments.grader import EnvironmentGrader
from germline.environments.tool_call_grader import RAISED, RETURNED, ToolCallGrader
from germline.environments.tool_calls import describe
from germline.episode_types import Transcript
from germline.graders.pool import GraderPool
from germline.protocols import Task
from germline.run.task_check_row import TaskCheckRow
from germline.tasks.environment_task import EnvironmentTask
from germline.types import Example, GermlineError

EXAMPLE_TEXT = "text"
"""Argument of a tool that takes a text, where the example has no gold answer."""

_BY_TYPE: Mapping[str, Any] = {
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


def check_tools(task: Task, config: Config, printed: Path) -> list[TaskCheckRow]:
    """Call every tool of an environment once; no row for a task without tools.

    Args:
        task: of any kind.
        config: whose limits of graders hold.
        printed: file to which what the tools print is appended.
    """
    if not isinstance(task, EnvironmentTask) or not task.has_tools:
        return []
    grader = task.episode_grader
    if not isinstance(grader, EnvironmentGrader):
        return []
    example = task.examples("train")[0]
    calls = example_calls(grader, example)
    limits = config.graders
    with GraderPool(
        ToolCallGrader(grader),
        grader.rubric.weights,
        grader.rubric.floors,
        timeout_s=limits.timeout_s,
        memory_gb=limits.memory_gb,
        max_turns=1,
    ) as pool:
        pool.redirect_output(printed)
        results = [_result(pool, name, arguments, example) for name, arguments in calls.items()]
    remarks = [
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())}) {result}"
        for (name, arguments), result in zip(calls.items(), results, strict=True)
    ]
    failed = [
        remark
        for remark, result in zip(remarks, results, strict=True)
        if not result.startswith(RETURNED)
    ]
    if not failed:
        return [TaskCheckRow("tools", len(calls), (), "ok", "; ".join(remarks))]
    remark = f"{'; '.join(failed)}: the model may call a tool with such arguments"
    return [TaskCheckRow("tools", len(calls), (), "warning", remark)]


def example_calls(grader: EnvironmentGrader, example: Example) -> dict[str, dict[str, Any]]:
    """Return example arguments of every tool by its name: those without a default."""
    adapter = adapt(grader.factory())
    tools = adapter.tools if isinstance(adapter, ToolAdapter) else {}
    close_environment(adapter)
    calls = {}
    for name, tool in tools.items():
        schema = describe(tool)["function"]["parameters"]
        calls[name] = {
            argument: _example_argument(schema["properties"][argument], example)
            for argument in schema["required"]
        }
    return calls


def _example_argument(schema: Mapping[str, Any], example: Example) -> Any:
    """Return a value that the JSON schema of an argument allows."""
    if schema.get("enum"):
        return schema["enum"][0]
    if "anyOf" in schema:
        return _example_argument(schema["anyOf"][0], example)
    return _BY_TYPE.get(schema.get("type", "string"), example.answer or EXAMPLE_TEXT)


def _result(pool: GraderPool, name: str, arguments: Mapping[str, Any], example: Example) -> str:
    """Make one call and wait for it, so that an error does not stop the next call."""
    call = Transcript((json.dumps([name, arguments]),), seed=0)
    try:
        (grade,) = pool.submit([call], [example]).result()
    except GermlineError as error:
        return f"{RAISED}{error}"
    return grade.observation or f"failed: {grade.failure}"
