"""The graders of episodes, which play an environment in a grader process.

`EnvironmentGrader` is a pure function of (replies so far, seed, example): live environments are
only a cache. An episode whose environment is not there (another worker has it, the worker was
killed, memory ran out) is played again from `reset`, reply by reply, so environments must be
deterministic: all randomness from the seed, no clock, no state outside the instance.

Whose fault a failure is: an exception, a hang or a crash in `step`, and a reward that is NaN or
infinite, is caused by the reply and earns the floor. `reset` runs before the first reply, so its
failure stops the run, as does a reward that is no number or not in the rubric.

A task file names the class of its environment, `environment = Mine`, or defines one class only that
has `reset`. `germline.graders.task_file` says how it is found again in grader processes.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from germline.environments.adapters import ToolAdapter, adapt, required_fields
from germline.environments.episode import Episode, EpisodeRubric
from germline.errors import GermlineError
from germline.example import Example, Transcript
from germline.graders.task_file import TaskFile, task_file_error
from germline.graders.worker_messages import InvalidGradeError

LIVE_EPISODES = 16_384
"""Largest number of live episodes in a grader process: more than the rows of a microbatch."""

Key = tuple[int, int, tuple[str, ...]]
"""Index of the example, seed of the environment, and replies so far."""


class EpisodeCache:
    """Live episodes by what the model wrote in them so far.

    Members that write the same replies have episodes under the same key. At `size` episodes, of
    which most were continued in other processes, all are closed, and made again when needed.
    """

    def __init__(self, size: int = LIVE_EPISODES) -> None:
        self._size = size
        self._count = 0
        self._episodes: dict[Key, list[Episode]] = {}

    def take(self, key: Key, row: Mapping[str, Any]) -> Episode | None:
        """Remove and return an episode; None without one of this row (splits share indices)."""
        same = self._episodes.get(key, [])
        place = next((i for i, episode in enumerate(same) if episode.row == row), None)
        if place is None:
            return None
        self._count -= 1
        episode = same.pop(place)
        if not same:
            del self._episodes[key]
        return episode

    def put(self, key: Key, episode: Episode) -> None:
        """Keep an episode until its next reply."""
        if self._count == self._size:
            self.clear()
        self._episodes.setdefault(key, []).append(episode)
        self._count += 1

    def clear(self) -> None:
        """Close all episodes."""
        for episode in itertools.chain.from_iterable(self._episodes.values()):
            episode.close()
        self._episodes, self._count = {}, 0


@dataclass(frozen=True)
class EnvironmentGrader:
    """Plays episodes of one environment; picklable, without its live episodes.

    A text is the only reply of an episode with seed 0.
    """

    name: str
    factory: Callable[[], Any]
    rubric: EpisodeRubric
    cache: EpisodeCache = field(default_factory=EpisodeCache, compare=False, repr=False)

    @property
    def described(self) -> str:
        """The name of the grader in messages."""
        return f"the environment {self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the environment without its live episodes."""
        return type(self), (self.name, self.factory, self.rubric)

    def __call__(self, asked: Transcript | str, example: Example) -> Mapping[str, float] | str:
        """Return the environment's next message, or the parts of an episode that has ended."""
        transcript = (
            asked if isinstance(asked, Transcript) else Transcript((asked,), 0, is_final=True)
        )
        try:
            return self._continue(transcript, example)
        except MemoryError:
            # Other episodes may hold the memory: they can be made again.
            self.cache.clear()
            return self._continue(transcript, example)

    def _continue(self, transcript: Transcript, example: Example) -> Mapping[str, float] | str:
        asked = example.index, transcript.seed, transcript.replies
        if transcript.is_final and (waiting := self.cache.take(asked, example.facts)):
            # The last reply was answered with a message before the episode was cut.
            return waiting.end(is_done=False)
        if transcript.replies:
            *earlier, reply = transcript.replies
            key = example.index, transcript.seed, tuple(earlier)
            episode = self.cache.take(key, example.facts)
            if episode is None:
                episode = self._replay(tuple(earlier), transcript.seed, example)
            is_done = bool(episode.step(reply).done)
        else:
            episode, is_done = self._replay((), transcript.seed, example), False
        if is_done or transcript.is_final:
            return episode.end(is_done=is_done)
        self.cache.put(asked, episode)
        return episode.observation

    def _replay(self, replies: tuple[str, ...], seed: int, example: Example) -> Episode:
        episode = Episode(self.factory, self.rubric, example.facts, seed)
        for turn, reply in enumerate(replies):
            if episode.step(reply).done:
                episode.close()
                raise InvalidGradeError(
                    f"is not deterministic: played again with the same row, seed {seed} and "
                    f"replies, the episode ended after turn {turn + 1} of {len(replies) + 1}. "
                    "Randomness must come from the `seed` that reset() gets"
                )
        return episode


@dataclass(frozen=True)
class FileEnvironmentGrader(EnvironmentGrader):
    """Plays the environment of a file; unpickling it finds the class in the file again."""

    factory: Callable[[], Any] = field(compare=False)  # loaded again, the class is another object
    file: TaskFile = field(kw_only=True)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the file instead of the class."""
        return make_grader, (self.file, self.rubric)


def make_grader(file: TaskFile, rubric: EpisodeRubric) -> FileEnvironmentGrader:
    """Return the grader of the environment in a file."""
    factory = environment_factory(file)
    name = f"{getattr(factory, '__name__', type(factory).__name__)} of {file.absolute}"
    return FileEnvironmentGrader(name, factory, rubric, file=file)


def environment_factory(file: TaskFile) -> Callable[[], Any]:
    """Return the class in a file that is the environment, or the function that makes one."""
    module = vars(file.module)
    given = module.get("environment")
    if isinstance(given, str):
        given = module.get(given, given)
    if callable(given):
        factory: Callable[[], Any] = given
        return factory
    if given is not None:
        raise GermlineError(
            f"{file.path}: `environment` must be a class of the file, such as environment = Mine, "
            f"found {given!r}"
        )
    found = [
        value
        for value in module.values()
        if isinstance(value, type) and value.__module__ == file.module.__name__
        if callable(getattr(value, "reset", None))
    ]
    if len(found) == 1:
        return found[0]
    names = ", ".join(kind.__name__ for kind in found) or "none"
    raise GermlineError(
        f"{file.path}: one class must have reset(**row), with step(reply) or public methods as "
        f"tools, found {names}: define it, or name it, such as environment = Mine"
    )


def inspect_environment(
    file: TaskFile, factory: Callable[[], Any]
) -> tuple[list[str], dict[str, Callable[..., Any]]]:
    """Return the fields of a row that `reset` needs, and the tools by name, none beside `step`."""
    with task_file_error(file.path, "the environment cannot be made without arguments"):
        environment = factory()
    reset = getattr(environment, "reset", None)
    adapter = adapt(environment)
    tools = adapter.tools if isinstance(adapter, ToolAdapter) else {}
    if not callable(reset) or (isinstance(adapter, ToolAdapter) and not tools):
        raise GermlineError(
            f"{file.path}: {type(environment).__name__} must have a method reset(**row), and "
            "step(reply) or public methods that are tools"
        )
    return required_fields(reset), tools
