"""The responses of OpenAI's API: objects, and the chunks of a stream."""

import json
import math
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from germline.endpoint.openai_requests import ChatRequest, CompletionRequest
from germline.endpoint.rows import RowResult, TokenScore
from germline.environments.tools import split_calls

LOWEST = -9999.0
"""Stands for the logarithm of a probability of 0 or of no number, as in OpenAI's API."""


@dataclass(frozen=True)
class Reply:
    """The completions of one request, those of its first prompt first."""

    request: ChatRequest | CompletionRequest
    fingerprint: str
    results: Sequence[RowResult]

    def message(self, text: str) -> dict[str, Any]:
        """Return a text of the model as a message of a chat, with the calls of its tools."""
        request = self.request
        assert isinstance(request, ChatRequest)
        content, calls = split_calls(text) if request.described_tools else (text, [])
        described = [
            {
                "id": f"call-{len(request.messages)}-{number}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for number, (name, arguments) in enumerate(calls)
        ]
        message = {"role": "assistant", "content": content}
        return message | {"tool_calls": described} if calls else message

    def chat(self) -> dict[str, Any]:
        """Return a chat completion."""
        choices = []
        for index, result in enumerate(self.results):
            message = self.message(result.completion.text)
            reason = "tool_calls" if "tool_calls" in message else _finish_reason(result)
            choice = {"index": index, "message": message, "logprobs": None}
            choices.append({**choice, "finish_reason": reason})
        return self._object("chat.completion", "chatcmpl", choices)

    def text(self) -> dict[str, Any]:
        """Return a text completion."""
        request = self.request
        assert isinstance(request, CompletionRequest)
        choices = [
            {
                "index": index,
                "text": result.prompt + result.completion.text,
                "logprobs": None if request.logprobs is None else _text_scores(result.scores),
                "finish_reason": _finish_reason(result),
            }
            for index, result in enumerate(self.results)
        ]
        return self._object("text_completion", "cmpl", choices)

    def chat_events(self) -> Iterator[str]:
        """Yield the events of a streamed chat completion: each text is one chunk."""
        whole, chunks = self.chat(), []
        for choice in whole["choices"]:
            delta = choice.pop("message")
            if "tool_calls" in delta:  # which are counted in a stream
                calls = enumerate(delta["tool_calls"])
                delta = {**delta, "tool_calls": [{"index": n, **call} for n, call in calls]}
            chunks += [{**choice, "delta": delta, "finish_reason": None}, {**choice, "delta": {}}]
        return self._events(whole, "chat.completion.chunk", chunks)

    def text_events(self) -> Iterator[str]:
        """Yield the events of a streamed text completion: each text is one chunk."""
        whole = self.text()
        return self._events(whole, "text_completion", whole["choices"])

    def _events(
        self, whole: dict[str, Any], kind: str, chunks: Sequence[Mapping[str, Any]]
    ) -> Iterator[str]:
        usage = whole.pop("usage")
        events = [whole | {"object": kind, "choices": [chunk]} for chunk in chunks]
        options = self.request.stream_options
        if options is not None and options.include_usage:
            events.append(whole | {"object": kind, "choices": [], "usage": usage})
        yield from (f"data: {json.dumps(event, allow_nan=False)}\n\n" for event in events)
        yield "data: [DONE]\n\n"

    def _object(self, kind: str, prefix: str, choices: Sequence[object]) -> dict[str, Any]:
        one_of_each = self.results[:: self.request.choices]
        read = sum(result.completion.prompt_tokens for result in one_of_each)
        written = sum(len(result.completion.tokens) for result in self.results)
        return {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self.request.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            "usage": {
                "prompt_tokens": read,
                "completion_tokens": written,
                "total_tokens": read + written,
            },
        }


def _finish_reason(result: RowResult) -> str:
    return "stop" if result.completion.finish in ("eos", "stop") else "length"


def _text_scores(scores: Sequence[TokenScore]) -> dict[str, Any]:
    tokens = [score.text for score in scores]
    return {
        "tokens": tokens,
        "token_logprobs": [
            None if score.logprob is None else _finite(score.logprob) for score in scores
        ],
        "top_logprobs": [_most_likely(score) for score in scores],
        "text_offset": list(accumulate(map(len, tokens), initial=0))[:-1],
    }


def _most_likely(score: TokenScore) -> dict[str, float] | None:
    """Return the likely tokens by text, and the token itself.

    Of two tokens with the same text, the likelier one is reported.
    """
    if not score.top:
        return None
    of_others = {text: _finite(logprob) for text, logprob in reversed(score.top)}
    return {score.text: _finite(score.logprob)} | of_others


def _finite(logprob: float | None) -> float:
    return LOWEST if logprob is None or not math.isfinite(logprob) else logprob
