"""Live episodes of a grader process, found again by what the model wrote in them so far.

Members that write the same replies have episodes under the same key. The number of live episodes is
bounded: the one that was continued least recently is closed, and is made again when it is needed.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from germline.environments.episode import Episode

LIVE_EPISODES = 16_384
"""Largest number of live episodes in a grader process: more than the rows of a microbatch, because
a cache that is a little too small finds nothing at all when all rows are continued in turn."""

Key = tuple[int, int, tuple[str, ...]]
"""Index of the example, seed of the environment, and replies so far."""


class EpisodeCache:
    """Episodes by key, the least recently continued first.

    Args:
        size: largest number of live episodes.
    """

    def __init__(self, size: int = LIVE_EPISODES) -> None:
        self._size = size
        self._count = 0
        self._episodes: OrderedDict[Key, list[Episode]] = OrderedDict()

    def take(self, key: Key, row: Mapping[str, Any]) -> Episode | None:
        """Remove and return an episode; None without one of this row (splits share indices)."""
        same = self._episodes.get(key, [])
        place = next((i for i, episode in enumerate(same) if episode.row == row), None)
        return None if place is None else self._pop(key, place)

    def put(self, key: Key, episode: Episode) -> None:
        """Keep an episode until its next reply."""
        self._episodes.setdefault(key, []).append(episode)
        self._episodes.move_to_end(key)
        self._count += 1
        while self._count > self._size:
            self._pop(next(iter(self._episodes)), 0).close()

    def clear(self) -> None:
        """Close all episodes."""
        while self._episodes:
            self._pop(next(iter(self._episodes)), 0).close()

    def _pop(self, key: Key, place: int) -> Episode:
        same = self._episodes[key]
        episode = same.pop(place)
        self._count -= 1
        if not same:
            del self._episodes[key]
        return episode
