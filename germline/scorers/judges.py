"""Language models that judge: `JudgeScorer` grades a completion, `PairwiseJudge` compares two.

The verdict of a judge is the value that its reply states in double brackets, `[[7]]` or `[[A]]`. A
judge may weigh several verdicts, quote its instructions or the completions, and stop before it has
decided, so the last brackets of a text are not always what it means. In this order:

1. What a reasoning model writes before `</think>` does not count.
2. If the last line is a verdict alone, that is the verdict. `Verdict: **[[A]]**.` is one alone:
   before it may stand a label that ends in a colon, around it marks of emphasis and a full stop.
3. Otherwise, if the reply was not cut at its longest length, and all brackets in it have the same
   value, that is the verdict.

Any other reply has no verdict. A reply without one, a refusal, a grade out of range and one of
another scale are missing: the judge failed, and not the model that is trained.

Known limit: a completion can address the judge. The default messages put it between tags and call
it data; a judge may follow it all the same.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from germline.config.scorers import ChatSettings, Judge, PairwiseJudgeSettings
from germline.engines.http_client import RequestRefused
from germline.scorers import Item, NotScoredError, Score, fill_template, full_prompt, missing
from germline.scorers.http_service import (
    REFUSED_FOR_ALL,
    HttpService,
    ServiceAwayError,
    ServiceScorer,
)
from germline.tasks.task_settings import without_thinking
from germline.types import EngineLost, GermlineError

PATH = "/chat/completions"

LONGEST_RESPONSE = 2000
"""Characters kept of a response that is no reply."""

_LONGEST_SHOWN = 80
_LONGEST_ALONE = 200
"""Characters of a line that is a verdict alone: matching a longer one takes quadratic time."""

_LABEL, _EMPHASIS = r"(?:[^:\[\]]{0,60}:)?", r"[\s*_`#>]*"
_NUMBER = r"[-+]?[0-9]+(?:\.[0-9]+)?"
_GRADE = rf"{_NUMBER}(?:\s*(?:/|out of)\s*{_NUMBER})?"
_BARE = re.compile(rf"\s*({_GRADE})\s*", re.IGNORECASE)

Value = TypeVar("Value")


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
    """Read the response of a judge, whose content is a text or a list of parts with a text."""
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
    """Return the verdict of a reply, or raise `NotScoredError` where there is none.

    Args:
        reply: of the judge.
        pattern: regular expression of a value, without the brackets.
        convert: makes the value; equal values are the same verdict.
        expected: what the judge was asked for, for errors, such as `[[A]] or [[B]]`.
    """
    text = without_thinking(reply.text, "think").strip()
    mark = rf"\[\[\s*({pattern})\s*\]\]"
    last = text.rpartition("\n")[2]
    if len(last) <= _LONGEST_ALONE and (
        alone := re.fullmatch(rf"{_EMPHASIS}{_LABEL}{_EMPHASIS}{mark}[\s*_`.!]*", last, re.I)
    ):
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


class JudgeScorer(ServiceScorer):
    """Asks a judge for the grade of one completion per request.

    The grade is a `[[number]]`, or the whole reply where it is a bare number. `7/10` and `7 out of
    10` are the grade 7 where the best grade is 10.
    """

    config: Judge

    def request_scores(self, items: Sequence[Item]) -> list[Score]:
        """Ask for the grade of the only completion of the batch."""
        ((text, example),) = items
        config = self.config
        values = {
            "prompt": full_prompt(example),
            "response": text,
            "answer": example.answer,
            "lowest": f"{config.lowest:g}",
            "highest": f"{config.highest:g}",
        }
        message = fill_template(config.template, values)
        response = self.post(PATH, chat_request(config, config.model, message))
        try:
            return [self._grade(read_reply(response))]
        except NotScoredError as error:
            return [missing(str(error))]

    def _grade(self, reply: Reply) -> Score:
        bare = _BARE.fullmatch(reply.text)
        grade = (
            self._number(bare.group(1))
            if bare
            else read_verdict(reply, _GRADE, self._number, "such as [[7]]")
        )
        lowest, highest = self.config.lowest, self.config.highest
        if not lowest <= grade <= highest:
            return missing(f"the judge's grade {grade:g} is not from {lowest:g} to {highest:g}")
        return Score((grade - lowest) / (highest - lowest))

    def _number(self, written: str) -> float:
        """Return the number of a grade such as `7` or `7/10`, unless its scale is another one."""
        number, *largest = map(float, re.findall(_NUMBER, written))
        lowest, highest = self.config.lowest, self.config.highest
        if largest and largest != [highest]:
            raise NotScoredError(
                f"the judge's grade {written!r} is out of {largest[0]:g}, and grades are from "
                f"{lowest:g} to {highest:g}: the template must ask for such a number"
            )
        return number


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """The judge's reply about two completions in one order; `failure` says why none is preferred.

    The text is None where the service gave no answer to this request.
    """

    preferred: Literal["first", "second"] | None
    text: str | None
    failure: str | None = None


class PairwiseJudge(HttpService):
    """Asks a judge which of two completions is better, `[[A]]` or `[[B]]`; thread-safe."""

    config: PairwiseJudgeSettings

    def __init__(self, settings: PairwiseJudgeSettings) -> None:
        super().__init__(settings, lambda field: f"judge.{field}")
        self.model = self._find_model(settings.model)

    def request(self, prompt: str, first: str, second: str) -> dict[str, Any]:
        """Return the body of the request about two completions in this order."""
        texts = {"prompt": prompt, "first": first, "second": second}
        message = fill_template(self.config.template, texts)
        return chat_request(self.config, self.model, message)

    def ask(self, request: Mapping[str, Any]) -> JudgeReply:
        """Send a request, and read the verdict.

        Raises:
            ServiceAwayError: the service answers no request.
            RequestRefused: the service refuses every request, such as for a wrong token.
        """
        try:
            response = self.post(PATH, request)
        except ServiceAwayError:
            raise
        except (RequestRefused, NotScoredError) as failure:
            if isinstance(failure, RequestRefused) and failure.status in REFUSED_FOR_ALL:
                raise
            return JudgeReply(None, None, str(failure))
        text = json.dumps(response)[:LONGEST_RESPONSE]
        try:
            reply = read_reply(response)
            text = reply.text
            letter = read_verdict(reply, "[AB]", str.upper, "[[A]] or [[B]]")
        except NotScoredError as failure:
            return JudgeReply(None, text, str(failure))
        return JudgeReply("first" if letter == "A" else "second", text)

    def _find_model(self, name: str | None) -> str:
        """Return the name of the model; ask the service, which also shows that it is there."""
        served: list[str] = []
        try:
            served = [str(model["id"]) for model in self._connection.get("/models")["data"]]
        except EngineLost as error:
            raise GermlineError(f"{error}: start the judge, or correct the address") from None
        except (RequestRefused, KeyError, TypeError) as error:  # it does not list its models
            if isinstance(error, RequestRefused) and error.status in (401, 403):
                raise GermlineError(
                    f"{error}: name the environment variable with the token, judge.token_env"
                ) from None
        if name is not None:
            return name
        if len(served) != 1:
            raise GermlineError(
                f"judge.url={self.config.url} lists {', '.join(served) or 'no models'}: name one, "
                "judge.model=NAME"
            )
        return served[0]
