"""Environments of the library verifiers (v1), whose episodes ask an endpoint for replies.

`verifiers_endpoint` plays them in the grader process. Whose fault a failure of an episode is:

- before the first reply, and errors of a service, a container or the endpoint: missing;
- any other exception of the task or its rewards, and a reward that is NaN or infinite: the floor;
- an episode in which nothing was rewarded: an error of the task.

Nothing is ever installed: the names of the hub are not those of PyPI, where packages of other
people have the same names.
"""

import contextlib
import copy
import functools
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from germline.environments.episode import EpisodeRubric
from germline.errors import GermlineError
from germline.example import EpisodeBatch, Example
from germline.graders.reward_functions import await_result
from germline.graders.worker_messages import GradeMissingError, InvalidGradeError, PartsFailedError

try:  # before the import, which takes seconds and fails with other versions
    _version = metadata.version("verifiers")
except metadata.PackageNotFoundError:
    _version = "none"
if not _version.startswith("0.4."):
    raise GermlineError(
        f"task.kind=verifiers needs verifiers>=0.4,<0.5, found {_version}: pip install "
        "'germline[verifiers]' (in an environment of its own where another package needs openai>=3)"
    )

import verifiers.v1 as vf

from germline.environments.verifiers_endpoint import (
    CONTEXT_IS_FULL,
    Tools,
    endpoint_agent,
    message_text,
    opening_messages,
    play_batch,
)

TOTAL = "reward"
"""The part of the rubric with the reward that verifiers computes: the weighted sum of its parts."""

INFRASTRUCTURE = ("ProviderError", "ToolsetError", "SandboxError", "InterceptionError")
"""Errors of verifiers that no reply of the model causes."""

SERVICE_AWAY = (
    *("ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "ConnectError"),
    *("APIConnectionError", "APITimeoutError", "InternalServerError"),
)
"""Exceptions with which a reward or an environment fails when a service that it asks is away."""

NO_LIMIT_S = 1e9
"""Time limit of an agent: its time includes that of germline's engine, which has its own limits."""

Opening = tuple[tuple[str, str], ...]
"""(role, content) of each message before the first reply."""


class LoadedTaskset:
    """A taskset, and the environment that plays it; unpickling it loads it again.

    Args:
        env: settings of the task, as the next two.
        args: of the taskset.
        tasks: number of tasks to read; None: all.
        max_turns: of one run of an agent; None: no limit.
    """

    def __init__(
        self, env: str, args: Mapping[str, Any], tasks: int | None, max_turns: int | None = None
    ) -> None:
        self.name = env
        self._source = env, args, tasks, max_turns
        _import(env)
        module = module_of(env)
        roles = {
            name: {"timeout": {"rollout": NO_LIMIT_S}}
            | endpoint_agent(field.default, module, max_turns)
            for name, field in vf.env_config_type(module).model_fields.items()
            if isinstance(field.default, vf.AgentConfig)
        }
        self._starts_tools = any("harness" not in role for role in roles.values())
        with _task_error(env, "task.args"):
            given = {"taskset": {**args, "id": module}, **roles}
            self.env = vf.load_environment(vf.resolve_env_config(given))
        taskset = self.env.taskset
        if not taskset.bounded and tasks is None:
            raise GermlineError(
                f"task.env={env} has no end: set task.tasks, the number of its tasks to read"
            )
        with _task_error(env, "load()"):
            self.tasks = [
                task if self._starts_tools else _without_servers(task)
                for task in itertools.islice(taskset, tasks)
            ]
        if not self.tasks:
            raise GermlineError(f"task.env={env} has no tasks: see task.args")
        await_result(self.env.start())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the taskset is loaded from."""
        return type(self), self._source

    def toolsets(self) -> list[Any]:
        """Make the tools of a task: its own, and those that all tasks share."""
        taskset, task = self.env.taskset, self.tasks[0]
        return [*type(taskset).toolsets(taskset.config), *type(task).toolsets(task.config)]

    def endpoint_toolsets(self) -> list[Any]:
        """Make the tools that are called in this process: none where a harness needs servers."""
        return [] if self._starts_tools else self.toolsets()

    def tool_schemas(self) -> list[dict[str, Any]]:
        """Return the JSON schemas of the tools."""
        with _task_error(self.name, "toolsets()"):
            return await_result(Tools(self.toolsets()).open()).schemas

    def opening(self, place: int) -> Opening:
        """Return the messages before the first reply, as the task writes them."""
        data = self.tasks[place].data
        with _task_error(self.name, f"the prompt of task {place}"):
            messages = opening_messages(data.system_prompt, data.prompt)
            return tuple((str(message.role), message_text(message)) for message in messages)

    def declared_parts(self) -> list[str]:
        """Name the rewards and metrics that the tasks declare."""
        task = self.tasks[0]
        hooks = [*task.hooks("reward"), *task.hooks("metric")]
        judges = [judge.reward_name for judge in task.plugged_judges()]
        return list(dict.fromkeys([*(hook.__name__ for hook in hooks), *judges]))


@dataclass(frozen=True)
class VerifiersGrader:
    """Plays episodes of a taskset."""

    taskset: LoadedTaskset = field(compare=False)  # loaded again, it is another object
    rubric: EpisodeRubric

    @property
    def described(self) -> str:
        """The name of the grader in messages."""
        return f"the environment {self.taskset.name}"

    def __call__(self, asked: Any, example: Example) -> Any:
        """Play a batch of episodes."""
        if not isinstance(asked, EpisodeBatch):
            raise InvalidGradeError("asks for the model's replies and grades no given ones")
        taskset = self.taskset
        return await_result(
            play_batch(taskset.env, taskset.tasks, taskset.endpoint_toolsets, asked, self._parts_of)
        )

    def _parts_of(self, episode: Any) -> Mapping[str, float]:
        """Return the parts of the rubric of an episode, or raise whose fault a failure is."""
        check_ok(episode, has_replied=any(trace.num_turns for trace in episode.traces))
        parts = tuple(name for name in self.rubric.weights if name != TOTAL)
        return self.rubric.with_floors(self.rubric.by_part(reward_parts(episode.traces, parts)))


def check_ok(episode: Any, *, has_replied: bool) -> None:
    """Raise the error of an episode that has failed: whether because of a reply or not."""
    late = any(trace.is_timeout for trace in episode.traces)
    if episode.ok and not late:
        return
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    kind = errors[-1].type if errors else "TimeoutError"
    text = errors[-1].message if errors else "a time limit of the task has passed"
    # verifiers writes the exception that it wraps into the message: `scoring: KeyError: 'a'`.
    is_away = not {kind, *text.split(": ")}.isdisjoint((*INFRASTRUCTURE, *SERVICE_AWAY))
    if (is_away and CONTEXT_IS_FULL not in text) or not has_replied:
        raise GradeMissingError(f"{kind}: {text}")
    raise PartsFailedError({}, f"{kind}: {text}")


def reward_parts(traces: Sequence[Any], parts: Sequence[str]) -> dict[str, float]:
    """Return the reward and its parts: means over the runs of the agents that are trained."""
    trained = [trace for trace in traces if trace.agent is None or trace.agent.trainable]
    trained = trained or list(traces)
    rewards = [_rewards(trace) for trace in trained]
    if not any(rewards):
        raise InvalidGradeError(
            "has no reward for an episode: define a method of the task with @vf.reward, or record "
            "a reward in every episode, trace.record_reward(name, 0.0) where it earns nothing"
        )
    values = [
        {name: reward.score for name, reward in given.items()} | _metrics(trace, parts)
        for trace, given in zip(trained, rewards, strict=True)
    ]
    known = {name: [one[name] for one in values if name in one] for name in parts}
    means = {name: sum(found) / len(found) for name, found in known.items() if found}
    total = sum(trace.reward for trace in trained) / len(trained)
    names = dict.fromkeys(name for given in rewards for name in given)
    _check_finite(f"the sum of the rewards {', '.join(names)}", total)
    return {**means, TOTAL: total}


def _rewards(trace: Any) -> dict[str, Any]:
    """Return the rewards of a run; one whose scoring did not run is None in the trace."""
    given = {name: reward for name, reward in trace.rewards.items() if reward is not None}
    for name, reward in given.items():
        _check_finite(f"the reward {name!r}", reward.score)
    return given


def _metrics(trace: Any, parts: Sequence[str]) -> dict[str, float]:
    given = {name: value for name, value in trace.metrics.items() if value is not None}
    for name in given.keys() & parts:
        _check_finite(f"the metric {name!r}", given[name])
    return given


def _check_finite(what: str, value: float) -> None:
    if not math.isfinite(value):
        raise PartsFailedError(
            {}, f"{what} is {value:g}: it must be a finite number whatever the model replies"
        )


def _import(env: str) -> None:
    if env.endswith(".py"):
        if module_of(env) != Path(env).stem:  # another may have that name
            raise GermlineError(f"task.env={env}: rename the file to {module_of(env)}.py")
        if (folder := str(Path(env).absolute().parent)) not in sys.path:
            sys.path.insert(0, folder)
    try:
        vf.task_type(module_of(env))
    except Exception as error:
        cause: BaseException = error
        while hidden := cause.__cause__ or cause.__context__:  # which verifiers hides
            cause = hidden
        raise GermlineError(
            f"task.env={env} is no module with a vf.Taskset of verifiers v1 "
            f"({type(cause).__name__}: {cause}): type `prime env install OWNER/NAME` for an "
            "environment of the hub (uv tool install prime), install the package that is missing "
            f"for {sys.executable}, or name a Python file (.py)"
        ) from error
    _keep_dictionary()


@contextlib.contextmanager
def _task_error(env: str, place: str) -> Iterator[None]:
    """Name the taskset in the exceptions of its code and of its settings."""
    try:
        yield
    except GermlineError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise GermlineError(f"task.env={env}: {place} fails: {reason}") from error


def _without_servers(task: Any) -> Any:
    """Return a task for which verifiers starts no tool servers."""
    task = copy.copy(task)
    task.toolsets = lambda _: []
    return task


def module_of(env: str) -> str:
    """Return the module of a taskset: `owner/some-name@1.2` is the module `some_name`."""
    name = Path(env).stem if env.endswith(".py") else env.rsplit("/", 1)[-1].partition("@")[0]
    return name.replace("-", "_").lower()


def _keep_dictionary() -> None:
    """Make the dictionary of TextArena's games once per process, where a taskset plays them.

    They make it again for every game, which takes 1.2 s and an attempt to download (tried with
    textarena 0.7.4). Called before the first game is made, whose module takes the name.
    """
    if "textarena" not in sys.modules:
        return
    from textarena.envs.utils import word_lists

    if isinstance(word_lists.EnglishDictionary, type):
        word_lists.EnglishDictionary = functools.cache(word_lists.EnglishDictionary)
