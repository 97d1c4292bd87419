"""Checks of a task with an environment: its reward and its tools, in episodes of known replies."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from germline.config import Config
from germline.environments.adapters import ToolAdapter, adapt
from germline.environments.grader import RAISED, RETURNED, EnvironmentGrader, ToolCallGrader
from germline.environments.tools import describe
from germline.example import Transcript, Turn
from germline.graders.pool import GraderPool
from germline.protocols import GraderProtocol, Task
from germline.run.reward_check import TaskCheckRow
from germline.tasks.environment_task import EnvironmentTask
from germline.tasks.thinking import own_grader
from germline.types import Example, GermlineError, Grade

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


@dataclass(frozen=True)
class ExampleEpisode:
    """An episode in which every reply is the gold answer, or empty where there is none.

    It begins with a message of the environment; `is_cut` says whether the limit of turns ended it.
    """

    reply: str
    begin: str
    turns: tuple[Turn, ...]
    grade: Grade
    is_cut: bool


def play_example(example: Example, max_turns: int, graders: GraderProtocol) -> ExampleEpisode:
    """Play an example with its gold answer as every reply, and seed 0."""

    def grade(replies: int, *, is_final: bool = False) -> Grade:
        asked = Transcript((example.answer,) * replies, seed=0, is_final=is_final)
        return graders.submit([asked], [example]).result()[0]

    state = grade(0)
    begin = state.observation or ""
    turns: list[Turn] = []
    while state.observation is not None:
        replies = len(turns) // 2 + 1
        turns.append(Turn("assistant", example.answer))
        state = grade(replies)
        if state.observation is not None and replies == max_turns:
            final = grade(replies, is_final=True)
            return ExampleEpisode(example.answer, begin, tuple(turns), final, is_cut=True)
        if state.observation is not None:
            turns.append(Turn("user", state.observation))
    return ExampleEpisode(example.answer, begin, tuple(turns), state, is_cut=False)


def check_tools(task: Task, config: Config, printed: Path) -> list[TaskCheckRow]:
    """Call every tool of an environment once; no row for a task without tools.

    Its arguments are made from its signature. An environment that ignores replies without a call
    hides a tool that fails, so each tool is called in an episode of its own, in a grader process
    and under the time limit of a turn.
    """
    if not isinstance(task, EnvironmentTask) or not task.has_tools:
        return []
    grader = own_grader(task.episode_grader)
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
        variables=limits.variables,
    ) as pool:
        pool.redirect_output(printed)
        results = [_result(pool, name, arguments, example) for name, arguments in calls.items()]
    remarks, failed = [], []
    for (name, arguments), result in zip(calls.items(), results, strict=True):
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        remarks.append(f"{name}({given}) {result}")
        if not result.startswith(RETURNED):
            failed.append(remarks[-1])
    if not failed:
        return [TaskCheckRow("tools", len(calls), (), "ok", "; ".join(remarks))]
    remark = f"{'; '.join(failed)}: the model may call a tool with such arguments"
    return [TaskCheckRow("tools", len(calls), (), "warning", remark)]


def example_calls(grader: EnvironmentGrader, example: Example) -> dict[str, dict[str, Any]]:
    """Return example arguments of every tool by its name: those without a default."""
    adapter = adapt(grader.factory())
    tools = adapter.tools if isinstance(adapter, ToolAdapter) else {}
    adapter.close()
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
