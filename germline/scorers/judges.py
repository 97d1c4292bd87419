"""Language models that judge: `JudgeScorer` grades a completion, `PairwiseJudge` compares two.

A reply without a grade or a verdict, a refusal, a grade out of range and one of another scale are
missing: the judge failed, and not the model that is trained. `judge_reply` says which part of a
reply counts.

Known limit: a completion can address the judge. The default messages put it between tags and call
it data; a judge may follow it all the same.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from germline.config.scorers import Judge, PairwiseJudgeSettings
from germline.engines.served.http_client import RequestRefused
from germline.scorers.http_service import (
    REFUSED_FOR_ALL,
    HttpService,
    ServiceAwayError,
    ServiceScorer,
)
from germline.scorers.judge_reply import PATH, Reply, chat_request, read_reply, read_verdict
from germline.scorers.types import Item, NotScoredError, Score, fill_template, full_prompt, missing
from germline.types import EngineLost, GermlineError

LONGEST_RESPONSE = 2000
"""Characters kept of a response that is no reply."""

_NUMBER = r"[-+]?[0-9]+(?:\.[0-9]+)?"
_GRADE = rf"{_NUMBER}(?:\s*(?:/|out of)\s*{_NUMBER})?"
_BARE = re.compile(rf"\s*({_GRADE})\s*", re.IGNORECASE)

Preferred = Literal["first", "second"]


class JudgeScorer(ServiceScorer):
    """Asks a judge for the grade of one completion per request.

    The grade is a `[[number]]`, or the whole reply where it is a bare number. `7/10` and `7 out of
    10` are the grade 7 where the best grade is 10.
    """

    def __init__(self, config: Judge, setting: str) -> None:
        super().__init__(config, setting)
        self._config = config

    def request_scores(self, items: Sequence[Item]) -> list[Score]:
        """Ask for the grade of the only completion of the batch."""
        ((text, example),) = items
        config = self._config
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
        lowest, highest = self._config.lowest, self._config.highest
        if not lowest <= grade <= highest:
            return missing(f"the judge's grade {grade:g} is not from {lowest:g} to {highest:g}")
        return Score((grade - lowest) / (highest - lowest))

    def _number(self, written: str) -> float:
        """Return the number of a grade such as `7` or `7/10`.

        Raises:
            NotScoredError: it is out of another number than the best grade.
        """
        number, *largest = map(float, re.findall(_NUMBER, written))
        lowest, highest = self._config.lowest, self._config.highest
        if largest and largest != [highest]:
            raise NotScoredError(
                f"the judge's grade {written!r} is out of {largest[0]:g}, and grades are from "
                f"{lowest:g} to {highest:g}: the template must ask for such a number"
            )
        return number


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """The judge's reply about two completions in one order.

    Attributes:
        preferred: None without a verdict.
        text: what the judge wrote; None where the service gave no answer to this request.
        failure: why there is no verdict.
    """

    preferred: Preferred | None
    text: str | None
    failure: str | None = None


class PairwiseJudge(HttpService):
    """Asks a judge which of two completions is better, `[[A]]` or `[[B]]`; thread-safe.

    Args:
        settings: of the judge.

    Raises:
        GermlineError: the judge cannot be reached, or its model is not known.
    """

    def __init__(self, settings: PairwiseJudgeSettings) -> None:
        super().__init__(settings, option_of)
        self.settings = settings
        self.concurrency = settings.concurrency
        self.model = self._find_model(settings.model)

    def request(self, prompt: str, first: str, second: str) -> dict[str, Any]:
        """Return the body of the request about two completions in this order."""
        texts = {"prompt": prompt, "first": first, "second": second}
        message = fill_template(self.settings.template, texts)
        return chat_request(self.settings, self.model, message)

    def ask(self, request: Mapping[str, Any]) -> JudgeReply:
        """Send a request, and read the verdict.

        Raises:
            ServiceAwayError: the service answers no request.
            RequestRefused: the service refuses every request, such as for a wrong token.
        """
        try:
            response = self.post(PATH, request)
        except (RequestRefused, NotScoredError) as failure:
            refused_for_all = isinstance(failure, RequestRefused) and (
                failure.status in REFUSED_FOR_ALL
            )
            if refused_for_all or isinstance(failure, ServiceAwayError):
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
            served = [str(model["id"]) for model in self.get("/models")["data"]]
        except EngineLost as error:
            raise GermlineError(f"{error}: start the judge, or correct the address") from None
        except RequestRefused as refusal:
            if refusal.status in (401, 403):
                raise GermlineError(
                    f"{refusal}: name the environment variable with the token, "
                    f"{option_of('token_env')}"
                ) from None
        except (KeyError, TypeError):
            pass  # a service that does not list its models
        if name is not None:
            return name
        if len(served) != 1:
            raise GermlineError(
                f"{option_of('url')}={self.settings.url} lists {', '.join(served) or 'no models'}: "
                f"name one, {option_of('model')}=NAME"
            )
        return served[0]


def option_of(field: str) -> str:
    """Return what sets a field of the judge in the command `germline elo`."""
    return "--judge" if field == "url" else f"judge.{field}"
