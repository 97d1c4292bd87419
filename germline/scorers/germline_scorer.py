"""The service that `germline serve --reward` starts: POST /score_batch {prompts, responses}."""

from collections.abc import Sequence
from typing import Any

from germline.config.scorers import GermlineScorer
from germline.scorers.http_service import ServiceScorer
from germline.scorers.types import (
    Item,
    NotScoredError,
    Score,
    missing,
    read_numbers,
    sendable,
)
from germline.types import Example


class GermlineServiceScorer(ServiceScorer):
    """Asks a scorer service for rewards or costs."""

    reports_truncation = True

    def __init__(self, config: GermlineScorer, setting: str) -> None:
        super().__init__(setting, config)
        self._field = f"{config.output}s"

    def request_scores(self, items: Sequence[Item]) -> list[Score]:
        """Send one request and read the scores of the model that is asked for."""
        body = {
            "prompts": [_prompt(example) for _, example in items],
            "responses": [sendable(text) for text, _ in items],
        }
        response = self.post("/score_batch", body)
        if not isinstance(response, dict):
            raise NotScoredError(f"the response is no object, found {repr(response)[:80]}")
        values = response.get(self._field)
        if values is None:
            raise NotScoredError(
                f"the service has no {self._field}: start it with --{self._field.rstrip('s')} "
                f"MODEL, or set {self.setting}.output"
            )
        count = len(items)
        scores = read_numbers(values, count, self._field)
        truncated = _listed(response, f"{self._field}_truncated", count)
        reasons = _listed(response, f"{self._field}_missing", count)
        return [
            missing(str(reason)) if reason else Score(score.value, score.missing, cut)
            for score, cut, reason in zip(scores, truncated, reasons, strict=True)
        ]


def _prompt(example: Example) -> object:
    """Return the prompt as a text, or as messages where there are some before it."""
    if not example.context:
        return sendable(example.prompt)
    turns = [*example.context, ("user", example.prompt)]
    return [{"role": role, "content": sendable(content)} for role, content in turns]


def _listed(response: dict[str, Any], field: str, count: int) -> list[Any]:
    """Return an optional list of a response; services of other origin may lack it."""
    values = response.get(field)
    return values if isinstance(values, list) and len(values) == count else [None] * count
