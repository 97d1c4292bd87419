"""Serve reward and cost models to other devices and machines: `germline serve --reward`.

    GET  /health                               -> {status, models}
    POST /score_batch {prompts, responses}     -> {rewards, costs, rewards_missing, ...}

A prompt is a text or a list of messages. Texts of requests that wait at the same time are scored in
one batch. A score that is missing is null, with its reason in `rewards_missing`; the fields of a
model that is not served are null.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field

from germline.config.scorers import ClassifierSettings
from germline.endpoint.http_app import (
    HEALTH,
    RequestError,
    UvicornService,
    check_address,
    make_app,
    results_of,
)
from germline.graders.batch_queue import BatchQueue
from germline.scorers import Item, Score
from germline.scorers.sequence_classifier import SequenceClassifier
from germline.types import Example

Queues = Mapping[str, BatchQueue[Item, Score]]
"""The texts that wait for the models of a service: `reward`, `cost` or both."""


@contextmanager
def scorer_service(
    sources: Mapping[str, str],
    classifier: ClassifierSettings,
    host: str = "127.0.0.1",
    port: int = 8100,
    token: str | None = None,
) -> Iterator[UvicornService]:
    """Load models and listen during a `with` block; call `run` of the server.

    Args:
        sources: `reward`, `cost` or both -> folder or Hugging Face id.
        classifier: how the models read texts.
        host: name or address of an interface.
        port: 0 takes any free one.
        token: which requests must have.
    """
    check_address(host, token)
    queues = {}
    with ExitStack() as opened:
        for role, source in sources.items():
            model = SequenceClassifier(source, classifier, partial(_option, role))
            queue = BatchQueue[Item, Score]([model.score], model.batch_size, f"scorer-{role}")
            queues[role] = opened.enter_context(closing(queue))
        app = _make_app(queues, sources, token)
        yield opened.enter_context(closing(UvicornService(app, host, port)))


def _option(role: str, setting: str) -> str:
    """Return what sets a setting of a model in the command."""
    return f"--{role}" if setting == "model" else setting


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid")

    role: str = Field(min_length=1)
    content: str


class ScoreBatch(BaseModel):
    """Prompts and their responses."""

    model_config = ConfigDict(extra="forbid")

    prompts: list[str | Annotated[list[Message], Field(min_length=1)]]
    responses: list[str]


def _make_app(queues: Queues, sources: Mapping[str, str], token: str | None) -> FastAPI:
    app = make_app("germline serve --reward", token)

    @app.get(HEALTH)
    async def health() -> dict[str, Any]:
        return {"status": "ok", "models": dict(sources)}

    @app.post("/score_batch")
    async def score_batch(request: ScoreBatch, http: Request) -> dict[str, Any]:
        prompts, responses = request.prompts, request.responses
        if len(prompts) != len(responses):
            raise RequestError(
                400,
                f"there are {len(prompts)} prompts and {len(responses)} responses: send one prompt "
                "for each response",
                param="responses",
            )
        items = list(zip(responses, map(_example, prompts), strict=True))
        scores = await results_of([queue.submit(items) for queue in queues.values()], http)
        found = dict(zip(queues, scores, strict=True))
        return _fields("rewards", found.get("reward")) | _fields("costs", found.get("cost"))

    return app


def _example(prompt: str | list[Message]) -> Example:
    """Return the example of a prompt: its last message, and the messages before it."""
    if isinstance(prompt, str):
        return Example(0, prompt, "", chat=True)
    *before, last = prompt
    context = tuple((message.role, message.content) for message in before)
    return Example(0, last.content, "", chat=True, context=context)


def _fields(name: str, scores: Sequence[Score] | None) -> dict[str, Any]:
    if scores is None:
        return {name: None, f"{name}_missing": None}
    return {
        name: [None if score.missing else score.value for score in scores],
        f"{name}_missing": [score.missing for score in scores],
    }
