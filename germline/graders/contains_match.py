"""Grade by containing: 1 when the gold answer stands in the completion as whole words.

Upper and lower case differ. `8` does not stand in `18`, nor `art` in `party`.

Known limit: a completion that lists every answer there is contains the right one; add `length` to
the rubric, or use `exact`, where that pays.
"""

import re
from functools import lru_cache

from germline.types import Example


def contains_reward(text: str, example: Example) -> float:
    """1 when the gold answer is in the completion as whole words, else 0."""
    return float(_words(example.answer.strip()).search(text) is not None)


@lru_cache(maxsize=4096)
def _words(answer: str) -> re.Pattern[str]:
    """Match an answer that is not the middle of a word; an empty answer stands nowhere."""
    start = r"(?<!\w)" if answer[:1].isalnum() else ""
    end = r"(?!\w)" if answer[-1:].isalnum() else ""
    return re.compile(start + re.escape(answer) + end if answer else r"(?!)")
