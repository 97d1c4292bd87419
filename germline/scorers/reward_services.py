"""Services that score batches of completions: `germline serve --reward`, OpenRLHF and vLLM."""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from germline.config.scorers import GermlineScorer, OpenRlhf, VllmClassify
from germline.scorers.http_service import ServiceScorer
from germline.scorers.types import (
    Item,
    NotScoredError,
    Score,
    full_prompt,
    missing,
    scored_text,
    sendable,
)
from germline.types import Example


class GermlineServiceScorer(ServiceScorer):
    """Rewards or costs of `germline serve --reward`: POST /score_batch {prompts, responses}."""

    config: GermlineScorer
    reports_truncation = True

    def request_scores(self, items: Sequence[Item]) -> list[Score]:
        """Send one request and read the scores of the model that is asked for."""
        body = {
            "prompts": [_prompt(example) for _, example in items],
            "responses": [sendable(text) for text, _ in items],
        }
        output = self.config.output
        response, field = self.post("/score_batch", body), f"{output}s"
        if isinstance(response, dict) and response.get(field) is None:
            raise NotScoredError(
                f"the service has no {field}: start it with --{output} MODEL, or set "
                f"{self.setting}.output"
            )
        scores = _numbers(response, field, len(items))
        none = [None] * len(items)
        truncated = response.get(f"{field}_truncated") or none
        reasons = response.get(f"{field}_missing") or none
        if any(not isinstance(row, list) or len(row) != len(items) for row in (truncated, reasons)):
            raise _unreadable(response, f"`{field}_truncated` and `{field}_missing` of its length")
        return [
            missing(str(reason)) if reason else Score(score.value, score.missing, cut)
            for score, cut, reason in zip(scores, truncated, reasons, strict=True)
        ]


class OpenRlhfScorer(ServiceScorer):
    """The remote reward model of OpenRLHF: POST {query, prompts, labels} -> {rewards}.

    `query` holds prompt and response together, `prompts` the prompt alone, `labels` the answer.
    """

    config: OpenRlhf

    def request_scores(self, items: Sequence[Item]) -> list[Score]:
        """Send one request and read its rewards."""
        body = {
            "query": [scored_text(self.config.template, *item) for item in items],
            "prompts": [sendable(full_prompt(example)) for _, example in items],
            "labels": [example.answer for _, example in items],
        }
        response = self.post("", body)
        rewards = {"rewards": response} if isinstance(response, list) else response
        return _numbers(rewards, "rewards", len(items))


class ClassifyScorer(ServiceScorer):
    """`/classify` of vLLM: the probability of a class, or the only output of a reward model."""

    config: VllmClassify

    def request_scores(self, items: Sequence[Item]) -> list[Score]:
        """Classify prompt and completion."""
        texts = [scored_text(self.config.template, *item) for item in items]
        model = {} if self.config.model is None else {"model": self.config.model}
        response = self.post("/classify", {**model, **self.config.options, "input": texts})
        with suppress(TypeError, KeyError, AttributeError):
            by_index = {row.get("index", place): row for place, row in enumerate(response["data"])}
            if len(by_index) == len(items):
                rows = [by_index[place] for place in range(len(items))]
                return [self._of_class(row.get("probs")) for row in rows]
        raise _unreadable(response, f"`data` with {len(items)} outputs")

    def _of_class(self, probabilities: object) -> Score:
        if not isinstance(probabilities, list) or not probabilities:
            return _number(probabilities)
        asked = self.config.label
        label = 0 if len(probabilities) == 1 and asked is None else asked
        if label is None or label >= len(probabilities):
            raise NotScoredError(
                f"{self.setting}.label={asked}: the model has {len(probabilities)} classes: "
                f"use the index of one, 0 to {len(probabilities) - 1}"
            )
        return _number(probabilities[label])


def _prompt(example: Example) -> object:
    """Return the prompt as a text, or as messages where there are some before it."""
    if not example.context:
        return sendable(example.prompt)
    turns = [*example.context, ("user", example.prompt)]
    return [{"role": role, "content": sendable(content)} for role, content in turns]


def _numbers(response: Any, field: str, count: int) -> list[Score]:
    values = response.get(field) if isinstance(response, dict) else None
    if not isinstance(values, list) or len(values) != count:
        raise _unreadable(response, f"`{field}` with {count} scores")
    return [_number(value) for value in values]


def _number(value: object) -> Score:
    """Read one score; anything but a finite number is missing."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return missing(f"the response has {repr(value)[:80]} where a finite number belongs")
    return Score(float(value))


def _unreadable(response: object, expected: str) -> NotScoredError:
    return NotScoredError(f"the response has no {expected}: {repr(response)[:80]}")
