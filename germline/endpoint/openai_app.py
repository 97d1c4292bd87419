"""The routes of an OpenAI-compatible server over one engine.

    POST /v1/chat/completions    GET /v1/models           GET /health
    POST /v1/completions         GET /v1/models/{name}

A streamed response (`stream: true`) has every completion as one chunk, once it is complete: all
members of a batch are generated together.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from germline.endpoint.engine_batcher import EngineBatcher
from germline.endpoint.http_app import HEALTH, AsciiJson, RequestError, make_app, results_of
from germline.endpoint.openai_requests import ChatRequest, CompletionRequest, Message
from germline.endpoint.openai_responses import Reply
from germline.endpoint.rows import EpisodeLog, LoggedTurn, NamedWeights, RowRequest
from germline.types import Example


@dataclass(frozen=True)
class Endpoint:
    """Answers requests; the `log` is of episodes whose environments send them, if there are any."""

    weights: NamedWeights
    batcher: EngineBatcher
    max_new_tokens: int
    log: EpisodeLog | None = None

    def app(self, token: str | None = None) -> FastAPI:
        """Return the application of a server."""
        app = make_app("germline serve", token)
        app.get(HEALTH)(self.health)
        app.get("/v1/models")(self.models)
        app.get("/v1/models/{name:path}")(self.model)
        app.post("/v1/chat/completions")(self.chat)
        app.post("/v1/completions")(self.complete)
        return app

    async def health(self) -> Response:
        """Say that the server answers."""
        if not self.batcher.is_alive:
            raise RequestError(503, "the engine's thread has ended")
        return AsciiJson({"status": "ok", "queued": self.batcher.rows})

    async def models(self) -> Response:
        """List the names of weights."""
        names = await asyncio.to_thread(self.weights.names)
        return AsciiJson({"object": "list", "data": [_model(name) for name in names]})

    async def model(self, name: str) -> Response:
        """Return one of the names."""
        await asyncio.to_thread(self.weights.select, name)
        return AsciiJson(_model(name))

    async def chat(self, request: ChatRequest, http: Request) -> Response:
        """Answer the last message of a conversation."""
        self._seed(request)
        asked, after = request.example(), None
        new = asked
        if self.log is not None:
            new, after = self.log.continued(request.model, request.seed or 0, asked)
        longest = request.max_completion_tokens or request.max_tokens
        reply = await self._reply(request, http, [new], longest, after=after)
        if self.log is not None:
            for result in reply.results:
                said = Message(**reply.message(result.completion.text)).text
                is_first, seed = after is None, request.seed or 0
                logged = LoggedTurn(seed, new, is_first, result.ids, result.completion)
                self.log.note(request.model, logged, asked, said)
        return _streamed(reply.chat_events()) if request.stream else AsciiJson(reply.chat())

    async def complete(self, request: CompletionRequest, http: Request) -> Response:
        """Continue texts."""
        self._seed(request)
        examples, longest = request.examples(), request.max_tokens
        scored = {"echo": bool(request.echo), "top": request.logprobs}
        reply = await self._reply(request, http, examples, longest, **scored)
        return _streamed(reply.text_events()) if request.stream else AsciiJson(reply.text())

    def _seed(self, request: ChatRequest | CompletionRequest) -> None:
        """Give a request that belongs to no episode the seed of the log."""
        if self.log is not None and request.seed is None:
            request.seed = self.log.default_seed

    async def _reply(
        self,
        request: ChatRequest | CompletionRequest,
        http: Request,
        examples: Sequence[Example],
        longest: int | None,
        **more: Any,
    ) -> Reply:
        """Generate the completions of a request; its rows leave the queue with the client."""
        if self.log is not None and longest is not None:
            longest = min(longest, self.max_new_tokens)  # `task.max_new_tokens` holds for agents
        # Members are drawn and the journal is read in a thread, as both may take a while.
        selected = await asyncio.to_thread(self.weights.select, request.model)
        decoding = request.decoding(self.max_new_tokens)
        row = RowRequest(selected, examples[0], decoding, longest, **more)
        futures = self.batcher.submit(
            [replace(row, example=example) for example in request.sampled(examples)]
        )
        results = await results_of(futures, http)
        if len(results) < len(examples) * request.choices:  # greedy choices are all the same
            results = [result for result in results for _ in range(request.choices)]
        return Reply(request, selected.fingerprint, results)


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "germline"}


def _streamed(events: Iterator[str]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream")
