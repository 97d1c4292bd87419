"""A language model that says which of two completions is better: two requests, one per order.

The verdict is `[[A]]` or `[[B]]`; `judge_reply` says which one counts. A reply without a verdict,
and a refusal, are recorded as such; they are never one for the other completion.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from germline.config.scorers import PairwiseJudgeSettings
from germline.engines.served.http_client import RequestRefused
from germline.scorers.circuit_breaker import ServiceAwayError
from germline.scorers.http_service import REFUSED_FOR_ALL, HttpService
from germline.scorers.judge_reply import ask_model, chat_request, read_reply, read_verdict
from germline.scorers.text_template import fill_template
from germline.scorers.types import NotScoredError, sendable
from germline.types import EngineLost, GermlineError

LONGEST_RESPONSE = 2000
"""Characters kept of a response that is no reply."""

Preferred = Literal["first", "second"]


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
    """Asks a judge about two completions; thread-safe.

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
        message = fill_template(
            self.settings.template, {name: sendable(text) for name, text in texts.items()}
        )
        return chat_request(self.settings, self.model, message)

    def ask(self, request: Mapping[str, Any]) -> JudgeReply:
        """Send a request, and read the verdict.

        Raises:
            NotScoredError: the service is away.
            RequestRefused: the service refuses every request, such as for a wrong token.
        """
        try:
            response = ask_model(self, request)
        except RequestRefused as refusal:
            if refusal.status in REFUSED_FOR_ALL:
                raise
            return JudgeReply(None, None, str(refusal))
        except ServiceAwayError as failure:
            if failure.circuit_is_open:
                raise
            return JudgeReply(None, None, str(failure))
        try:
            reply = read_reply(response)
        except NotScoredError as failure:
            return JudgeReply(None, json.dumps(response)[:LONGEST_RESPONSE], str(failure))
        try:
            letter = read_verdict(reply, "[AB]", str.upper, "[[A]] or [[B]]")
        except NotScoredError as failure:
            return JudgeReply(None, reply.text, str(failure))
        return JudgeReply("first" if letter == "A" else "second", reply.text)

    def _find_model(self, name: str | None) -> str:
        """Return the name of the model; ask the service, which also shows that it is there."""
        try:
            listed = self.get("/models")
            served = [str(one["id"]) for one in listed["data"]]
        except EngineLost as error:
            raise GermlineError(f"{error}: start the judge, or correct the address") from None
        except RequestRefused as refusal:
            if refusal.status in (401, 403):
                raise GermlineError(
                    f"{refusal}: name the environment variable with the token, "
                    f"{option_of('token_env')}"
                ) from None
            served = []
        except (KeyError, TypeError):
            served = []
        if name is not None:
            return name
        if len(served) == 1:
            return served[0]
        found = f"serves {', '.join(served)}" if served else "does not list its models"
        raise GermlineError(
            f"{option_of('url')}={self.settings.url} {found}: name one, {option_of('model')}=NAME"
        )


def option_of(field: str) -> str:
    """Return what sets a field of the judge in the command `germline elo`."""
    return "--judge" if field == "url" else f"judge.{field}"
