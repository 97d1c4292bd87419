"""Split a list into train and test by a seed.

Items that belong together (`3 + 5` and `5 + 3`) have the same key and are in the same split. Both
splits are shuffled, so that the first hundred held-out examples are a random sample.
"""

from collections.abc import Hashable, Sequence
from typing import TypeVar

from germline.noise import epoch_permutation
from germline.types import GermlineError

TEST_SHARE = 0.2

Item = TypeVar("Item")


def seeded_split(
    items: Sequence[Item], keys: Sequence[Hashable], seed: int, name: str
) -> tuple[list[Item], list[Item]]:
    """Split into about 80 % train and 20 % test; items with equal keys stay together.

    Args:
        items: what is split.
        keys: one per item.
        seed: another seed is another split; any integer.
        name: where the items come from, for the noise stream and for the error.

    Raises:
        GermlineError: there are fewer than two different keys, so one side would be empty.
    """
    groups = list(dict.fromkeys(keys))
    if len(groups) < 2:
        raise GermlineError(
            f"{name}: a train/test split needs at least 2 different examples, found {len(groups)}; "
            "add examples, or give the held-out ones in a file of their own"
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
