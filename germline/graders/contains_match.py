"""Grade by containment: 1 if the completion contains the gold answer as whole words.

The comparison is case-sensitive. `18` does not contain `8`, and `party` does not contain `art`.

Known limit: a completion that lists all possible answers contains the right one. If models learn
that, add `length` to the rubric, or use `exact`.
"""

import re
from functools import lru_cache

from germline.example import Example


def contains_reward(text: str, example: Example) -> float:
    """1 when the gold answer is in the completion as whole words, else 0."""
    return float(_words(example.answer.strip()).search(text) is not None)


@lru_cache(maxsize=4096)
def _words(answer: str) -> re.Pattern[str]:
    """Match an answer that is not part of a longer word; an empty answer never matches."""
    start = r"(?<!\w)" if answer[:1].isalnum() else ""
    end = r"(?!\w)" if answer[-1:].isalnum() else ""
    return re.compile(start + re.escape(answer) + end if answer else r"(?!)")
