"""One message to a language model behind `/chat/completions`, and its reply."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from germline.config.scorers import ChatSettings
from germline.engines.served.http_client import RequestRefused
from germline.scorers.http_service import HttpService
from germline.scorers.types import NotScoredError

PATH = "/chat/completions"
LENGTH_FIELD, LENGTH_SETTING = "max_tokens", "max_new_tokens"
"""The field of a request with the longest reply, and the setting of `ChatSettings` it is from."""

_LONGEST_SHOWN = 80


class Reply(NamedTuple):
    """What the model wrote, and whether it was cut at the longest reply."""

    text: str
    cut: bool

    @property
    def cut_hint(self) -> str:
        """What an error adds about a reply that was cut; empty for a whole one."""
        return ", and was cut at max_new_tokens" if self.cut else ""


def chat_request(config: ChatSettings, model: str, message: str) -> dict[str, Any]:
    """Return the body of the request."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": message}],
        LENGTH_FIELD: config.max_new_tokens,
        "temperature": config.temperature,
        **config.options,
    }


def ask_model(service: HttpService, request: Mapping[str, Any]) -> Any:
    """Send a request and return the response.

    Raises:
        RequestRefused: the service refuses the request; where that is for the longest reply, the
            message names the setting.
        NotScoredError: the service does not answer.
    """
    try:
        return service.post(PATH, request)
    except RequestRefused as refusal:
        if LENGTH_FIELD not in refusal.reason:
            raise
        hint = f"{LENGTH_FIELD} is {service.name_of(LENGTH_SETTING)}={request[LENGTH_FIELD]} here"
        raise RequestRefused(f"{refusal}; {hint}", refusal.status, refusal.reason) from None


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
            f"the judge's response is no chat completion: {end_of(response)}"
        ) from None
    if isinstance(text, list):
        text = "".join(str(part.get("text", "")) for part in text if isinstance(part, dict))
    reply = Reply(text if isinstance(text, str) else "", choice.get("finish_reason") == "length")
    if not reply.text.strip():
        why = f"refuses: {end_of(refusal)}" if refusal else f"gives no reply{reply.cut_hint}"
        raise NotScoredError(f"the judge {why}")
    return reply


def end_of(value: object) -> str:
    """Show the end of a long reply, where the verdict should have been."""
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return repr(text if len(text) <= _LONGEST_SHOWN else f"...{text[-_LONGEST_SHOWN:]}")
