"""Split a list into train and test by a seed.

Items that belong together (`3 + 5` and `5 + 3`) have the same key and are in the same split. Both
splits are shuffled, so that the first hundred held-out examples are a random sample.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import starmap
from typing import TypeVar

from germline.config import TaskBase
from germline.noise import epoch_permutation
from germline.protocols import Grader
from germline.types import Example, GermlineError, Split

TEST_SHARE = 0.2

Item = TypeVar("Item")


class SplitTask:
    """A task whose examples are made when it is: the base class of all tasks here.

    The length and the stop strings of `config` replace those of the task. The metric is by default
    the part of largest weight.
    """

    _examples: Mapping[Split, Sequence[Example]]

    def __init__(
        self,
        config: TaskBase,
        grader: Grader,
        rubric: Mapping[str, float],
        floor: Mapping[str, float],
        *,
        max_new_tokens: int,
        metric: str | None = None,
        stop: tuple[str, ...] = (),
    ) -> None:
        self.name = config.title
        self.grader, self.rubric, self.floor = grader, rubric, floor
        self.metric: str = metric or heaviest_part(rubric)
        self.metric_higher_is_better = rubric.get(self.metric, 1.0) >= 0
        self.max_new_tokens = config.max_new_tokens or max_new_tokens
        self.stop = stop if config.stop is None else config.stop

    @staticmethod
    def by_split(
        sides: tuple[Sequence[Item], Sequence[Item]], make: Callable[[int, Item], Example]
    ) -> dict[Split, tuple[Example, ...]]:
        """Make the examples of both splits, of their places and items."""
        train, test = (tuple(starmap(make, enumerate(items))) for items in sides)
        return {"train": train, "test": test}

    def examples(self, split: Split) -> Sequence[Example]:
        """Return the examples of a split, always the same ones in the same order."""
        return self._examples[split]


def heaviest_part(weights: Mapping[str, float]) -> str:
    """Return the part of largest weight."""
    return max(weights, key=lambda name: abs(weights[name]))


def seeded_split(
    items: Sequence[Item], keys: Sequence[Hashable], seed: int, name: str
) -> tuple[list[Item], list[Item]]:
    """Split into about 80 % train and 20 % test; items with equal keys stay together.

    Another seed, any integer, is another split. An error has the name of the items' source.
    """
    groups = list(dict.fromkeys(keys))
    if len(groups) < 2:
        raise GermlineError(
            f"{name}: a train/test split needs at least 2 different examples, found "
            f"{len(groups)}; add examples, or give held-out ones"
        )
    tests = max(1, round(TEST_SHARE * len(groups)))
    # The stream is named after the purpose alone: moving a file must not change its split.
    held_out = {
        groups[index] for index in epoch_permutation(seed, "split keys", 0, len(groups))[:tests]
    }
    train: list[Item] = []
    test: list[Item] = []
    for index in epoch_permutation(seed, "split order", 0, len(items)):
        (test if keys[index] in held_out else train).append(items[index])
    return train, test
