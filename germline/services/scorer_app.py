"""The routes of `germline scorer`: reward and cost models that score texts over HTTP.

    GET  /health                               -> {status, models}
    POST /score_batch {prompts, responses}     -> {rewards, costs, rewards_truncated, ...}
    POST /score_texts {texts}                  -> the same, of texts that need no template

A prompt is a text or a list of messages. Texts of requests that wait at the same time are scored in
one batch. A score that is not finite is null, with its reason in `rewards_missing`; the fields of a
model that is not served are null.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from germline.endpoint.http_app import HEALTH, HttpLimits, RequestError, make_app
from germline.scorers.batch_queue import BatchQueue
from germline.scorers.classifier import BATCHES_AT_A_TIME
from germline.scorers.sequence_classifier import EncodedText, SequenceClassifier
from germline.scorers.types import NotScoredError, Score
from germline.types import Example

ROLES = ("reward", "cost")
"""What a model can be; the response has a list for each, such as `rewards`."""


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid")

    role: str = Field(min_length=1)
    content: str


Prompt = str | Annotated[list[Message], Field(min_length=1)]


class ScoreBatch(BaseModel):
    """Prompts and their responses."""

    model_config = ConfigDict(extra="forbid")

    prompts: list[Prompt]
    responses: list[str]


class ScoreTexts(BaseModel):
    """Whole texts, prompt and response in the format of the model."""

    model_config = ConfigDict(extra="forbid")

    texts: list[str]


class ScorerModels:
    """The models of a service, and the queues that make their batches.

    Args:
        models: `reward`, `cost` or both.
        batch_size: texts per forward pass.
        max_queue: texts that wait, beyond which requests are refused.
    """

    def __init__(
        self, models: Mapping[str, SequenceClassifier], batch_size: int, max_queue: int
    ) -> None:
        self.models = models
        self._max_queue = max_queue
        self._encoding = 0  # texts that are not in a queue yet; changed by the event loop alone
        self._queues = {
            role: BatchQueue[EncodedText, Score](
                model.score, BATCHES_AT_A_TIME * batch_size, threads=1, name=f"scorer-{role}"
            )
            for role, model in models.items()
        }

    def close(self) -> None:
        """Cancel what is not scored yet."""
        for queue in self._queues.values():
            queue.close()

    def _check_room(self, texts: int) -> None:
        """Refuse a request that waits too long or never fits.

        Raises:
            RequestError: there is no room for its texts.
        """
        if texts > self._max_queue:
            raise RequestError(
                413,
                f"the request has {texts} texts, and at most {self._max_queue} are taken: send "
                "several requests",
                code="too_many_texts",
            )
        waiting = self._encoding + max(len(queue) for queue in self._queues.values())
        if waiting + texts > self._max_queue:
            raise RequestError(
                429, f"{waiting} texts are waiting: send the request again", code="queue_full"
            )

    async def score(
        self, texts: int, encode: Callable[[], Mapping[str, Sequence[EncodedText]]]
    ) -> dict[str, Any]:
        """Return the fields of a response to a request with so many texts.

        Raises:
            RequestError: there is no room for the texts, or they cannot be encoded.
        """
        self._check_room(texts)
        self._encoding += texts
        try:
            encoded = await asyncio.to_thread(encode)
        finally:
            self._encoding -= texts
        futures = {
            role: asyncio.wrap_future(self._queues[role].submit(rows))
            for role, rows in encoded.items()
        }
        scores = dict(zip(futures, await asyncio.gather(*futures.values()), strict=True))
        fields: dict[str, Any] = {}
        for role in ROLES:
            fields |= _fields(role, scores.get(role))
        return fields


def make_scorer_app(
    models: ScorerModels, sources: Mapping[str, str], limits: HttpLimits
) -> FastAPI:
    """Return the application of a scorer service.

    Args:
        models: score the texts.
        sources: role -> folder or Hugging Face id, which `/health` shows.
        limits: of requests.
    """
    app = make_app("germline scorer", limits)

    @app.get(HEALTH)
    async def health() -> dict[str, Any]:
        return {"status": "ok", "models": sources}

    @app.post("/score_batch")
    async def score_batch(request: ScoreBatch) -> dict[str, Any]:
        if len(request.prompts) != len(request.responses):
            raise RequestError(
                400,
                f"there are {len(request.prompts)} prompts and {len(request.responses)} responses: "
                "send one prompt for each response",
                param="responses",
            )
        encode = partial(_encode_pairs, models.models, request)
        return await models.score(len(request.responses), encode)

    @app.post("/score_texts")
    async def score_texts(request: ScoreTexts) -> dict[str, Any]:
        encode = partial(_encode_texts, models.models, request.texts)
        return await models.score(len(request.texts), encode)

    return app


def _encode_pairs(
    models: Mapping[str, SequenceClassifier], request: ScoreBatch
) -> dict[str, list[EncodedText]]:
    items = [
        (response, _example(prompt))
        for prompt, response in zip(request.prompts, request.responses, strict=True)
    ]
    try:
        return {role: [model.encode_pair(item) for item in items] for role, model in models.items()}
    except NotScoredError as error:
        raise RequestError(400, str(error), param="prompts") from None


def _encode_texts(
    models: Mapping[str, SequenceClassifier], texts: Sequence[str]
) -> dict[str, list[EncodedText]]:
    return {role: [model.encode_text(text) for text in texts] for role, model in models.items()}


def _example(prompt: str | list[Message]) -> Example:
    """Return the example of a prompt: its last message, and the messages before it."""
    if isinstance(prompt, str):
        return Example(0, prompt, "", chat=True)
    *before, last = prompt
    context = tuple((message.role, message.content) for message in before)
    return Example(0, last.content, "", chat=True, context=context)


def _fields(role: str, scores: Sequence[Score] | None) -> dict[str, Any]:
    name = f"{role}s"
    if scores is None:
        return {name: None, f"{name}_truncated": None, f"{name}_missing": None}
    return {
        name: [None if score.missing else score.value for score in scores],
        f"{name}_truncated": [bool(score.truncated) for score in scores],
        f"{name}_missing": [score.missing for score in scores],
    }
