"""Environments of the library verifiers (v1), played in the grader process.

A live episode is an asyncio task on the event loop of the grader process. It waits between two
turns, for the reply that germline's engine generates (`verifiers_policy`); what it asks next is the
observation. The replies alone decide what happens, so episodes are found again and repeated like
those of every other environment (`grader`).

Environments with several agents, and agents with a harness of their own, ask an endpoint for
replies instead (`verifiers_endpoint`).

Whose fault a failure is: see `verifiers_outcome`. Besides, a step that hangs earns the floor, and
what germline cannot play (images, other tool servers) is an error.

`_interception` of an environment is a private name of verifiers 0.4: tests/test_verifiers.py plays
episodes with it.
"""

import asyncio
import contextlib
import copy
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from germline.environments.episode import EpisodeRubric
from germline.environments.grader import EnvironmentGrader
from germline.environments.step_result import StepResult, shown
from germline.environments.textarena_words import keep_dictionary, missing_data
from germline.environments.verifiers_installed import check_installed, check_version, module_of
from germline.environments.verifiers_outcome import TOTAL, check_ok, reward_parts
from germline.episode_types import EpisodeBatch
from germline.errors import GermlineError
from germline.example import Example
from germline.graders.event_loop import await_result
from germline.graders.worker_messages import InvalidGradeError

check_version()  # before the import, which takes seconds and fails with other versions

import verifiers.v1 as vf  # noqa: E402

from germline.environments.verifiers_endpoint import (  # noqa: E402
    declared_agents,
    endpoint_agent,
    needs_http,
    play_batch,
)
from germline.environments.verifiers_policy import (  # noqa: E402
    CURRENT,
    HARNESS,
    DirectInterception,
    NotPlayableError,
    Policy,
    Tools,
    message_text,
    opening_messages,
)

NO_LIMIT_S = 1e9
"""Time limit of an agent: its time includes that of germline's engine, which has its own limits."""

Client = Literal["auto", "direct", "http"]

Opening = tuple[tuple[str, str], ...]
"""(role, content) of each message before the first reply."""


@dataclass(frozen=True)
class TasksetSource:
    """What a taskset is loaded from; picklable.

    Attributes:
        env: `task.env`.
        args: `task.args`.
        tasks: number of tasks to read; None reads all.
        client: `task.client`.
        max_turns: of one run of an agent that asks an endpoint; None: no limit.
    """

    env: str
    args: Mapping[str, Any]
    tasks: int | None
    client: Client = "auto"
    max_turns: int | None = None


class LoadedTaskset:
    """A taskset, and the environment that plays it with germline's policy.

    Attributes:
        needs_http: why the agents cannot be played on the direct path; empty if they can.
        client: `direct` or `http`.

    Raises:
        GermlineError: it is not installed, needs verifiers v0, has no end, or has several agents
            and `task.client=direct`.
    """

    def __init__(self, source: TasksetSource) -> None:
        self.source = source
        _import(source.env)
        module = module_of(source.env)
        config_type = vf.env_config_type(module)
        agents = declared_agents(config_type)
        self.needs_http = needs_http(agents, module)
        self.client = source.client
        if source.client == "auto":
            self.client = "http" if self.needs_http else "direct"
        if self.client == "direct" and len(agents) != 1:
            raise GermlineError(
                f"task.env={source.env} has the agents {', '.join(agents)}, and task.client=direct "
                "plays environments with one agent: use task.client=http"
            )
        is_direct = self.client == "direct"
        limits = {"timeout": {"rollout": NO_LIMIT_S}}
        direct = limits | {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}}
        roles = {
            name: direct if is_direct else limits | endpoint_agent(role, module, source.max_turns)
            for name, role in agents.items()
        }
        given = {"taskset": {**source.args, "id": module}, **roles}
        self._starts_tools = not is_direct and any("harness" not in role for role in roles.values())
        with _task_error(source.env, "task.args"):
            self.env = vf.load_environment(vf.resolve_env_config(given))
        if is_direct:
            self.env._interception = DirectInterception()
        taskset = self.env.taskset
        if not taskset.bounded and source.tasks is None:
            raise GermlineError(
                f"task.env={source.env} has no end: set task.tasks, the number of its tasks to read"
            )
        with _task_error(source.env, "load()"):
            self.tasks = [
                task if self._starts_tools else _without_servers(task)
                for task in itertools.islice(taskset, source.tasks)
            ]
        if not self.tasks:
            raise GermlineError(f"task.env={source.env} has no tasks: see task.args")
        await_result(self.env.start())

    def toolsets(self) -> list[Any]:
        """Make the tools of a task: its own, and those that all tasks share."""
        taskset, task = self.env.taskset, type(self.tasks[0])
        config = self.tasks[0].config
        return [*type(taskset).toolsets(taskset.config), *task.toolsets(config)]

    def endpoint_toolsets(self) -> list[Any]:
        """Make the tools that are called in this process where an endpoint is asked."""
        return [] if self._starts_tools else self.toolsets()

    def tool_schemas(self) -> list[dict[str, Any]]:
        """Return the JSON schemas of the tools."""
        try:
            return await_result(Tools(self.toolsets()).open()).schemas
        except NotPlayableError as error:
            raise GermlineError(f"task.env={self.source.env} {error}") from None

    def opening(self, place: int) -> Opening:
        """Return the messages before the first reply, as the task writes them."""
        data = self.tasks[place].data
        try:
            return _shown(opening_messages(data.system_prompt, data.prompt))
        except NotPlayableError as error:
            raise GermlineError(f"task.env={self.source.env} {error}") from None

    def declared_parts(self) -> list[str]:
        """Name the rewards and metrics that the tasks declare."""
        task = self.tasks[0]
        hooks = [*task.hooks("reward"), *task.hooks("metric")]
        judges = [judge.reward_name for judge in task.plugged_judges()]
        return list(dict.fromkeys([*(hook.__name__ for hook in hooks), *judges]))


class VerifiersEpisode:
    """One episode, in the shape of germline's own environments.

    Args:
        taskset: loaded in this process.
        parts: names of the rewards and metrics to report, besides `reward`.
    """

    def __init__(self, taskset: LoadedTaskset, parts: Sequence[str]) -> None:
        self._taskset = taskset
        self._parts = parts
        self._policy = Policy(taskset.toolsets)
        self._run: asyncio.Task[Any] | None = None
        self._has_replied = False

    async def reset(self, task: int) -> str:
        """Begin a task; return what follows its prompt."""
        context = vf.ModelContext("germline", vf.EvalClientConfig(api_key_var="GERMLINE_NO_KEY"))
        token = CURRENT.set(self._policy)
        try:
            run = self._taskset.env.run_episode(self._taskset.tasks[task], context)
            self._run = asyncio.get_running_loop().create_task(run)
        finally:
            CURRENT.reset(token)
        if not await self._is_asked():
            self._check_ok()
            raise InvalidGradeError(f"ends task {task} before the model has written anything")
        return self._follows(self._taskset.opening(task))

    async def step(self, reply: str) -> StepResult:
        """Give the reply to the environment, and wait until it asks for the next one or ends."""
        self._has_replied = True
        # Half a surrogate pair is no text to verifiers, which hashes messages as UTF-8.
        self._policy.answer(reply.encode("utf-8", "replace").decode("utf-8"))
        if not await self._is_asked():
            return StepResult(None, done=True)
        observation = "\n".join(text for _, text in _playable(self._policy.asks))
        return StepResult(observation, done=False)

    async def get_reward(self) -> dict[str, float]:
        """Return the reward and its parts; an episode that has not ended is cut and scored."""
        assert self._run is not None
        if not self._run.done():
            self._policy.answer(None)
            if await self._is_asked():
                raise InvalidGradeError("asks for another reply after its turn limit")
        self._check_ok()
        return reward_parts(self._run.result().traces, self._parts)

    async def close(self) -> None:
        """Cancel an episode that has not ended."""
        if self._run is not None and not self._run.done():
            self._run.cancel()
            await asyncio.wait([self._run])

    async def _is_asked(self) -> bool:
        """Wait until the environment asks for a reply (True) or the episode ends (False)."""
        assert self._run is not None
        asked = asyncio.ensure_future(self._policy.asked.wait())
        try:
            await asyncio.wait([self._run, asked], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:  # a time limit
            self._run.cancel()
            raise
        finally:
            asked.cancel()
        if self._run.done():
            self._run.result()  # raises the time limit of a step that was interrupted in it
            return False
        return True

    def _follows(self, written: Opening) -> str:
        """Return what the environment asks first, without the messages that the task has written.

        Raises:
            InvalidGradeError: the first messages are others than those of the task.
        """
        asked = _playable(self._policy.asks)
        rest = asked[len(written) :]
        if asked[: len(written)] != written or any(role != "user" for role, _ in rest):
            raise InvalidGradeError(
                f"begins with other messages ({shown(asked)}) than its task has "
                f"({shown(written)}): germline shows the model system_prompt and prompt of the task"
            )
        return "\n".join(text for _, text in rest)

    def _check_ok(self) -> None:
        """Check that the episode has not failed.

        Raises:
            GradeMissingError: it failed, not because of a reply.
            PartsFailedError: it failed because of a reply.
            InvalidGradeError: germline cannot play it.
        """
        assert self._run is not None
        if self._policy.problem:
            raise InvalidGradeError(f"{self._policy.problem}: use task.client=http")
        check_ok(self._run.result(), has_replied=self._has_replied)


@dataclass(frozen=True)
class EpisodeFactory:
    """Makes episodes of a taskset.

    Attributes:
        taskset: loaded in this process.
        parts: names of the rewards and metrics to report, besides `reward`.
    """

    taskset: LoadedTaskset
    parts: tuple[str, ...]

    def __call__(self) -> VerifiersEpisode:
        """Return an episode that has not begun."""
        return VerifiersEpisode(self.taskset, self.parts)


@dataclass(frozen=True)
class VerifiersGrader(EnvironmentGrader):
    """Plays episodes of a taskset; unpickling it loads the taskset again."""

    factory: Callable[[], Any] = field(compare=False)  # loaded again, it is another object

    def __call__(self, asked: Any, example: Example) -> Any:
        """Continue an episode, or play a batch of episodes whose environments ask an endpoint."""
        if not isinstance(asked, EpisodeBatch):
            return super().__call__(asked, example)
        assert isinstance(self.factory, EpisodeFactory)
        taskset, parts = self.factory.taskset, self.factory.parts
        return await_result(
            play_batch(
                taskset.env,
                taskset.tasks,
                taskset.endpoint_toolsets,
                asked,
                lambda episode: _parts_of(episode, parts, self.rubric),
            )
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the taskset is loaded from instead of the taskset."""
        assert isinstance(self.factory, EpisodeFactory)
        return _reload, (self.factory.taskset.source, self.rubric)


def make_grader(taskset: LoadedTaskset, rubric: EpisodeRubric) -> VerifiersGrader:
    """Return the grader of a taskset with these parts."""
    parts = tuple(name for name in rubric.weights if name != TOTAL)
    return VerifiersGrader(taskset.source.env, EpisodeFactory(taskset, parts), rubric)


def _parts_of(episode: Any, parts: Sequence[str], rubric: EpisodeRubric) -> Mapping[str, float]:
    """Return the parts of the rubric of an episode that has asked an endpoint.

    Raises:
        GradeMissingError: it failed, not because of a reply.
        PartsFailedError: it failed because of a reply, or a reward is NaN or infinite.
        InvalidGradeError: it has no reward.
    """
    check_ok(episode, has_replied=any(trace.num_turns for trace in episode.traces))
    return rubric.with_floors(rubric.by_part(reward_parts(episode.traces, parts)))


def _reload(source: TasksetSource, rubric: EpisodeRubric) -> VerifiersGrader:
    return make_grader(LoadedTaskset(source), rubric)


def _import(env: str) -> None:
    """Import the module of a taskset.

    Raises:
        GermlineError: it is not installed, cannot be imported, or needs verifiers v0.
    """
    check_installed(env)
    if env.endswith(".py") and (folder := str(Path(env).absolute().parent)) not in sys.path:
        sys.path.insert(0, folder)
    try:
        vf.task_type(module_of(env))
    except Exception as error:
        # The message names verifiers where the module imports or uses what v0 had.
        is_old = isinstance(error, ImportError | AttributeError) and "verifiers" in str(error)
        if is_old or hasattr(sys.modules.get(module_of(env)), "load_environment"):
            raise GermlineError(
                f"task.env={env} is an environment of verifiers v0 (load_environment), which ended "
                f"with verifiers 0.3.1; germline plays v1: install a version with a "
                f"vf.Taskset, or ask its authors for one ({type(error).__name__}: {error})"
            ) from error
        raise GermlineError(
            f"task.env={env} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    keep_dictionary()


@contextlib.contextmanager
def _task_error(env: str, place: str) -> Iterator[None]:
    """Name the taskset in the exceptions of its code and of its settings."""
    try:
        yield
    except GermlineError:
        raise
    except Exception as error:
        reason = missing_data(error) or f"{type(error).__name__}: {error}"
        raise GermlineError(f"task.env={env}: {place} fails: {reason}") from error


def _without_servers(task: Any) -> Any:
    """Return a task for which verifiers starts no tool servers."""
    task = copy.copy(task)
    task.toolsets = lambda _: []
    return task


def _playable(messages: Sequence[Any]) -> Opening:
    try:
        return _shown(messages)
    except NotPlayableError as error:
        raise InvalidGradeError(f"{error}, which germline cannot play") from None


def _shown(messages: Sequence[Any]) -> Opening:
    return tuple((str(message.role), message_text(message)) for message in messages)
