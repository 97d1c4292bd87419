"""Split a list into train and test by a seed.

Items that belong together (`3 + 5` and `5 + 3`) have the same key and are in the same split. Both
splits are shuffled, so that the first hundred held-out examples are a random sample.
"""

from collections import Counter
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
        raise _too_few(name, len(groups))
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


def stratified_split(
    items: Sequence[Item], strata: Sequence[Hashable], seed: int, name: str
) -> tuple[list[Item], list[Item]]:
    """Split into about 80 % train and 20 % test, so that each stratum has its share of both.

    Items are shuffled, sorted by stratum, and one in every five goes to the test split: the number
    that a stratum has there differs from a fifth of its size by less than one. All items are
    different; the arguments are those of `seeded_split`.
    """
    if len(items) < 2:
        raise _too_few(name, len(items))
    places = {stratum: place for place, stratum in enumerate(dict.fromkeys(strata))}
    order = epoch_permutation(seed, "split strata", 0, len(items)).tolist()
    grouped = sorted(order, key=lambda index: places[strata[index]])
    step = round(1 / TEST_SHARE)
    tests = grouped[min(step, len(items)) // 2 :: step]
    held_out = set(tests)
    train = [items[index] for index in grouped if index not in held_out]
    return train, [items[index] for index in tests]


def stratified_order(items: Sequence[Item], strata: Sequence[Hashable], seed: int) -> list[Item]:
    """Shuffle items so that the first n have each stratum in about its proportion, for every n.

    The k-th of the m items of a stratum, k from 0 on, is at (k + 1/2) / m of the way.
    """
    sizes, ranks = Counter(strata), Counter[Hashable]()
    positions: list[tuple[float, int]] = []
    for index in epoch_permutation(seed, "split order", 0, len(items)).tolist():
        stratum = strata[index]
        positions.append(((ranks[stratum] + 0.5) / sizes[stratum], index))
        ranks[stratum] += 1
    return [items[index] for _, index in sorted(positions, key=lambda position: position[0])]


def _too_few(name: str, count: int) -> GermlineError:
    return GermlineError(
        f"{name}: a train/test split needs at least 2 different examples, found {count}; add "
        "examples, or give held-out ones"
    )
