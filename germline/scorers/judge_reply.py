"""A message to a language model behind `/chat/completions`, and the verdict of its reply.

A verdict is the value that a reply states in double brackets, `[[7]]` or `[[A]]`.

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
from typing import Any, NamedTuple, TypeVar

from germline.config.scorers import ChatSettings
from germline.scorers.types import NotScoredError
from germline.tasks.thinking import without_thinking

PATH = "/chat/completions"

_LONGEST_SHOWN = 80
_LONGEST_ALONE = 200
"""Characters of a line that is a verdict alone: matching a longer one takes quadratic time."""

Value = TypeVar("Value")

_LABEL, _EMPHASIS = r"(?:[^:\[\]]{0,60}:)?", r"[\s*_`#>]*"


class Reply(NamedTuple):
    """What the model wrote, and whether it was cut at the longest reply."""

    text: str
    cut: bool

    @property
    def cut_hint(self) -> str:
        """What an error adds about a reply that was cut."""
        return ", and was cut at max_new_tokens" if self.cut else ""


def chat_request(config: ChatSettings, model: str, message: str) -> dict[str, Any]:
    """Return the body of the request."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": message}],
        "max_tokens": config.max_new_tokens,
        "temperature": config.temperature,
        **config.options,
    }


def read_reply(response: Any) -> Reply:
    """Read the response of a judge, whose content is a text or a list of parts with a text.

    Raises:
        NotScoredError: the judge refuses, replies nothing, or sends no chat completion.
    """
    try:
        choice = response["choices"][0]
        text, refusal = choice["message"].get("content"), choice["message"].get("refusal")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise NotScoredError(
            f"the judge's response is no chat completion: {_end_of(response)}"
        ) from None
    if isinstance(text, list):
        text = "".join(str(part.get("text", "")) for part in text if isinstance(part, dict))
    reply = Reply(text if isinstance(text, str) else "", choice.get("finish_reason") == "length")
    if not reply.text.strip():
        why = f"refuses: {_end_of(refusal)}" if refusal else f"gives no reply{reply.cut_hint}"
        raise NotScoredError(f"the judge {why}")
    return reply


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
    alone = re.fullmatch(
        rf"{_EMPHASIS}{_LABEL}{_EMPHASIS}{mark}[\s*_`.!]*", last[: _LONGEST_ALONE + 1], re.I
    )
    if alone and len(last) <= _LONGEST_ALONE:
        return convert(alone.group(1))
    mentioned = list(dict.fromkeys(re.findall(mark, text, re.I)))
    values = {convert(value) for value in mentioned}
    if len(values) == 1 and not reply.cut:
        return values.pop()
    why = f"has no verdict, {expected} (a small model may not follow the template)"
    if values:
        seen = ", ".join(f"[[{value}]]" for value in mentioned)
        why = f"mentions {seen}, and its last line is no verdict alone"
    raise NotScoredError(f"the judge's reply {why}{reply.cut_hint}: {_end_of(reply.text)}")


def _end_of(value: object) -> str:
    """Show the end of a long reply, where the verdict should have been."""
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return repr(text if len(text) <= _LONGEST_SHOWN else f"...{text[-_LONGEST_SHOWN:]}")
