"""The verdict of a judge: the value that a reply states in double brackets, `[[7]]` or `[[A]]`.

A judge may weigh several verdicts, quote its instructions or the completions, and stop before it
has decided, so the last brackets of a text are not always what it means. In this order:

1. What a reasoning model writes before `</think>` does not count.
2. If the last line is a verdict alone, that is the verdict. `Verdict: **[[A]]**.` is one alone:
   before it may stand a label that ends in a colon, around it marks of emphasis and a full stop.
3. Otherwise, if the reply was not cut at its longest length, and all brackets in it have the same
   value, that is the verdict.

Any other reply has no verdict.
"""

import re
from collections.abc import Callable
from typing import TypeVar

from germline.scorers.chat_completion import Reply, end_of
from germline.scorers.types import NotScoredError
from germline.tasks.thinking import without_thinking

Value = TypeVar("Value")

_LABEL, _EMPHASIS = r"(?:[^:\[\]]{0,60}:)?", r"[\s*_`#>]*"


def read_verdict(
    reply: Reply, pattern: str, convert: Callable[[str], Value], expected: str
) -> Value:
    """Return the verdict of a reply.

    Args:
        reply: of the judge.
        pattern: regular expression of a value, without the brackets.
        convert: makes the value; equal values are the same verdict.
        expected: what the judge was asked for, for errors, such as `[[A]] or [[B]]`.

    Raises:
        NotScoredError: there is no verdict.
    """
    text = without_thinking(reply.text, "think").strip()
    mark = rf"\[\[\s*({pattern})\s*\]\]"
    last = text.rpartition("\n")[2]
    if alone := re.fullmatch(rf"{_EMPHASIS}{_LABEL}{_EMPHASIS}{mark}[\s*_`.!]*", last, re.I):
        return convert(alone.group(1))
    found = [convert(value) for value in re.findall(mark, text, re.I)]
    values = list(dict.fromkeys(found))
    if len(values) == 1 and not reply.cut:
        return values[0]
    why = f"has no verdict, {expected} (a small model may not follow the template)"
    if values:
        seen = ", ".join(dict.fromkeys(f"[[{one}]]" for one in re.findall(mark, text, re.I)))
        why = f"mentions {seen}, and its last line is no verdict alone"
    raise NotScoredError(f"the judge's reply {why}{reply.cut_hint}: {end_of(reply.text)}")
