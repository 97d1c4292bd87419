"""The grader of episodes: it plays an environment in a grader process.

It is a pure function of (replies so far, seed, example): live environments are only a cache. An
episode whose environment is not there (another worker has it, the worker was killed, memory ran
out) is played again from `reset`, reply by reply, so environments must be deterministic: all
randomness from the seed, no clock, no state outside the instance.

Whose fault a failure is: an exception, a hang or a crash in `step`, and a reward that is NaN or
infinite, is caused by the reply and earns the floor. `reset` runs before the first reply, so its
failure stops the run, as does a reward that is no number or not in the rubric.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from germline.environments.episode import Episode, EpisodeRubric
from germline.environments.episode_cache import EpisodeCache
from germline.episode_types import Transcript
from germline.example import Example
from germline.graders.worker_messages import InvalidGradeError


@dataclass(frozen=True)
class EnvironmentGrader:
    """Plays episodes of one environment; picklable, without its live episodes.

    Attributes:
        name: of the environment, for errors.
        factory: makes an instance, which plays one episode.
        rubric: the parts of the reward.
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

    def __call__(self, transcript: Transcript, example: Example) -> Mapping[str, float] | str:
        """Return the environment's next message, or the parts of an episode that has ended.

        Raises:
            PartsFailedError: the last reply made the environment fail.
            InvalidGradeError: the environment is at fault.
        """
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
        """Make an environment and give it the replies of an episode so far."""
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
class SingleReplyGrader:
    """Grades a text as the only reply of an episode with seed 0.

    Attributes:
        episodes: the grader of episodes.
    """

    episodes: EnvironmentGrader

    def __call__(self, text: str, example: Example) -> Mapping[str, float]:
        """Return the parts of the episode."""
        parts = self.episodes(Transcript((text,), seed=0, is_final=True), example)
        assert not isinstance(parts, str)
        return parts
