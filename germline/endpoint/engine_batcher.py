"""A thread that owns the engine and answers rows of many requests in batches.

Rows wait in a queue until the engine is free. A batch has the rows that can be generated together:
they have the same center, and the same temperature, top_p, stop strings and, where they sample, the
same longest completion. Greedy rows may have different ones: a greedy completion is the beginning
of a longer one, so it is cut from that. Members may differ.

When a batch is finished, its clients send their next requests: before the next batch, the thread
waits until as many rows are there as were before, or until no more come.

A row whose future is cancelled leaves the queue; one that is being generated is discarded.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from germline.endpoint.http_app import RequestError
from germline.endpoint.member_rows import generate_rows
from germline.endpoint.named_weights import NamedWeights
from germline.endpoint.prompt_length import check_prompt_length, check_room
from germline.endpoint.rows import RowRequest, RowResult
from germline.endpoint.token_scores import ScoredText, TokenScore, score_texts
from germline.engines.pretrained import PretrainedModel
from germline.engines.prompt_batch import PromptEncoder, encode_prompt
from germline.engines.served.completion_decoder import CompletionDecoder
from germline.protocols import TextScorer
from germline.types import Completion, Decoding, EngineLost, Example, GermlineError

log = logging.getLogger(__name__)

GAP = (0.004, 0.1)
"""A batch waits for further rows until none came for so many seconds, or for this share of the time
of the batch before, if that is longer."""

GATHERING = (0.02, 0.25)
"""It waits so many seconds at most, or this share of the time of the batch before."""


@runtime_checkable
class HasTokenizer(Protocol):
    """An engine with the tokenizer of a model."""

    pretrained: PretrainedModel
    encoder: PromptEncoder


@dataclass
class _Row:
    """A row in the queue.

    Attributes:
        ids: tokens of the prompt; empty where the engine has no tokenizer.
        decoding: with the row's own longest completion.
    """

    request: RowRequest
    future: "Future[RowResult]"
    ids: tuple[int, ...]
    decoding: Decoding

    @property
    def longest(self) -> int:
        return self.decoding.max_new_tokens


class EngineBatcher:
    """See the module's docstring.

    Args:
        weights: the engine, which only this object's thread uses from now on.
        max_rows: of a batch.
        max_queue: rows that wait or are being generated.

    Attributes:
        first_failure: the error of the first batch that failed; None: none did.
    """

    def __init__(self, weights: NamedWeights, *, max_rows: int, max_queue: int) -> None:
        self.first_failure: Exception | None = None
        self._weights = weights
        self._max_rows = max_rows
        self._max_queue = max_queue
        self._arrived: deque[tuple[RowRequest, Future[RowResult]]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._waiting: list[_Row] = []  # touched by the thread alone
        self._batch_s = 0.0
        self._expected = 0
        self._token_texts: dict[int, str] = {}
        self._open: set[Future[RowResult]] = set()
        engine = weights.engine
        self._tokenizer = engine if isinstance(engine, HasTokenizer) else None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether rows are answered."""
        return self._thread.is_alive() and not self._closing

    @property
    def rows(self) -> int:
        """Number of rows that wait or are being generated."""
        return len(self._open)

    def submit(self, requests: Sequence[RowRequest]) -> "list[Future[RowResult]]":
        """Put rows into the queue; cancel a future to take its row out.

        Raises:
            RequestError: the queue has no room for all of them, now (429) or ever (400).
        """
        self.check_size(len(requests))
        futures: list[Future[RowResult]] = [Future() for _ in requests]
        with self._changed:
            if self._closing:
                raise RequestError(503, "the server is closing", code="closing")
            if len(self._open) + len(futures) > self._max_queue:
                raise RequestError(
                    429,
                    f"{len(self._open)} of {self._max_queue} places of the queue are taken, and "
                    f"the request needs {len(futures)}: send it again",
                    code="queue_full",
                )
            self._open.update(futures)
            self._arrived.extend(zip(requests, futures, strict=True))
            self._changed.notify()
        for future in futures:
            future.add_done_callback(self._open.discard)
        return futures

    def check_size(self, count: int) -> None:
        """Check that a request for so many completions can ever be answered.

        Raises:
            RequestError: the queue has no room for them even when it is empty.
        """
        if count > self._max_queue:
            raise RequestError(
                400,
                f"the request needs {count} completions, and the queue of this server has room for "
                f"{self._max_queue} (germline serve --max-queue): send fewer prompts, or lower n",
            )

    def close(self) -> None:
        """Answer no more rows, and close the engine."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._weights.close()

    def _run(self) -> None:
        while True:
            self._gather()
            if self._closing:
                break
            if batch := self._next_batch():
                started = time.monotonic()
                self._answer(batch)
                self._batch_s = time.monotonic() - started
        for future in list(self._open):
            future.cancel()

    def _gather(self) -> None:
        """Wait for rows, and a little longer for those that come with them."""
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._waiting or self._closing)
        gap, longest = (max(least, share * self._batch_s) for least, share in (GAP, GATHERING))
        deadline = time.monotonic() + longest
        while not self._closing:
            self._encode_arrived()
            left = min(gap, deadline - time.monotonic())
            if len(self._waiting) >= min(self._expected, self._max_rows) or left <= 0:
                break
            with self._changed:
                if not self._changed.wait_for(lambda: self._arrived or self._closing, left):
                    break
        # A batch that came too early must not make the next ones small.
        self._expected = max(len(self._waiting), 3 * self._expected // 4)

    def _encode_arrived(self) -> None:
        while self._arrived:
            request, future = self._arrived.popleft()
            if future.cancelled():
                continue
            try:
                self._waiting.append(self._encoded(request, future))
            except RequestError as error:
                _fail([future], error)
            except GermlineError as error:  # a client does not know the index of an example
                internal = f"the prompt of example {request.example.index}"
                what = str(error).replace(internal, "`prompt`")
                _fail([future], RequestError(400, what, code="invalid_prompt"))
            except Exception:
                log.exception("a prompt failed")
                _fail([future], RequestError(500, "the tokenizer failed: see the server's log"))

    def _encoded(self, request: RowRequest, future: "Future[RowResult]") -> _Row:
        """Tokenize a prompt, and check that it fits the model.

        Raises:
            RequestError: it does not, or the engine lacks what the request needs.
        """
        self._check_supported(request)
        asked, most = request.max_new_tokens, request.decoding.max_new_tokens
        if self._tokenizer is None:
            longest = most if asked is None else asked
            limit = getattr(self._weights.engine, "context_tokens", None)
            check_room(len(request.example.prompt), longest, limit)
            return _Row(request, future, (), replace(request.decoding, max_new_tokens=longest))
        example, encoder = request.example, self._tokenizer.encoder
        if (last := request.after) is not None:
            answer = encoder.encode_answer(example, last.completion, example.prompt)
            example = replace(example, token_ids=(*last.ids, *last.completion.tokens, *answer))
        context = encoder.context_tokens
        if not example.token_ids:  # not `encode`, which would keep the tokens of every prompt
            tokenizer = self._tokenizer.pretrained.tokenizer
            check_prompt_length(example, tokenizer, context)
            example = replace(example, token_ids=tuple(encode_prompt(tokenizer, example)))
        ids = tuple(encoder.encode(example))
        if asked is None:
            asked = most if context is None else max(1, min(most, context - len(ids)))
        check_room(len(ids), asked, context)
        return _Row(request, future, ids, replace(request.decoding, max_new_tokens=asked))

    def _check_supported(self, request: RowRequest) -> None:
        kind = self._weights.engine_kind
        needs_tokenizer = request.top is not None or request.echo or request.example.token_ids
        if self._tokenizer is None and needs_tokenizer:
            raise RequestError(
                400,
                f"engine.kind={kind} has no tokenizer: leave out echo, logprobs and prompts of "
                "token ids, or serve with engine=inprocess",
            )
        if request.example.chat and self._tokenizer is not None and not self._has_chat_template:
            raise RequestError(
                400, "the model's tokenizer has no chat template: use /v1/completions"
            )
        if request.top and not isinstance(self._weights.engine, TextScorer):
            raise RequestError(
                400,
                f"engine.kind={kind} does not report the most likely tokens: use logprobs=0 "
                "(completions) or leave out top_logprobs (chat), or serve with engine=inprocess",
                param="logprobs",
            )

    @property
    def _has_chat_template(self) -> bool:
        return bool(self._tokenizer and self._tokenizer.pretrained.tokenizer.chat_template)

    def _next_batch(self) -> list[_Row]:
        """Take the oldest row, and all that can be generated together with it."""
        waiting = [row for row in self._waiting if not row.future.cancelled()]
        context = self._tokenizer.encoder.context_tokens if self._tokenizer else None
        batch: list[_Row] = []
        rest: list[_Row] = []
        group: tuple[object, ...] = ()
        prompt = new = 0
        for row in waiting:
            group = group or self._group(row)
            both = max(prompt, len(row.ids)), max(new, row.longest)
            fits = len(batch) < self._max_rows and self._group(row) == group
            if fits and (context is None or sum(both) <= context):
                batch.append(row)
                prompt, new = both
            else:
                rest.append(row)
        self._waiting = rest
        return [row for row in batch if row.future.set_running_or_notify_cancel()]

    def _group(self, row: _Row) -> tuple[object, ...]:
        """Return what rows of one batch have in common."""
        decoding = row.decoding
        is_greedy = decoding.temperature == 0
        # Greedy completions of similar lengths: a short one does not wait for a long one.
        can_cut = is_greedy and self._tokenizer is not None
        length = row.longest.bit_length() if can_cut else row.longest
        top_p = 1.0 if is_greedy else decoding.top_p
        return (
            row.request.weights.generation,
            *(decoding.temperature, top_p, decoding.stop, length),
        )

    def _answer(self, batch: Sequence[_Row]) -> None:
        """Generate a batch; its futures get results, or the error."""
        try:
            self._weights.load(batch[0].request.weights)
            results = self._results(batch)
        except Exception as error:  # noqa: BLE001 - every error reaches the clients of the batch
            self.first_failure = self.first_failure or error
            _fail([row.future for row in batch], _refusal(error, len(batch)))
        else:
            for row, result in zip(batch, results, strict=True):
                row.future.set_result(result)

    def _results(self, batch: Sequence[_Row]) -> list[RowResult]:
        longest = max(row.longest for row in batch)
        if longest:
            decoding = replace(batch[0].decoding, max_new_tokens=longest)
            rows = [(row.request.weights.member, self._example(row)) for row in batch]
            completions = generate_rows(self._weights.engine, rows, decoding)
            completions = [self._cut(*pair) for pair in zip(batch, completions, strict=True)]
        else:
            completions = [Completion("", (), "length", len(row.ids)) for row in batch]
        scores = self._scores(batch, completions)
        return [
            RowResult(completion, row.ids, self._prompt(row), score)
            for row, completion, score in zip(batch, completions, scores, strict=True)
        ]

    def _example(self, row: _Row) -> Example:
        """Return the example as tokens, which the engine need not compute again."""
        return replace(row.request.example, token_ids=row.ids) if row.ids else row.request.example

    def _cut(self, row: _Row, completion: Completion) -> Completion:
        """Cut a greedy completion that may be longer than the row asked for."""
        if len(completion.tokens) <= row.longest or self._tokenizer is None:
            return completion
        decoder = CompletionDecoder(
            self._tokenizer.pretrained.tokenizer, self._tokenizer.encoder.end_ids
        )
        return decoder.completion(completion.tokens, completion.prompt_tokens, row.decoding)

    def _scores(
        self, batch: Sequence[_Row], completions: Sequence[Completion]
    ) -> list[tuple[TokenScore, ...]]:
        scores: list[tuple[TokenScore, ...]] = [() for _ in batch]
        asked = [place for place, row in enumerate(batch) if row.request.top is not None]
        if not asked or self._tokenizer is None:
            return scores
        texts = [_scored_text(batch[place], completions[place]) for place in asked]
        model = self._tokenizer.pretrained.model
        vocabulary = int(model.get_input_embeddings().num_embeddings)
        found = score_texts(self._weights.engine, texts, vocabulary, self._token_text)
        for place, score in zip(asked, found, strict=True):
            row = batch[place]
            first = (TokenScore(self._token_text(row.ids[0]), None),) if row.request.echo else ()
            scores[place] = (*first, *score)
        return scores

    def _token_text(self, token: int) -> str:
        assert self._tokenizer is not None
        if token not in self._token_texts:
            tokenizer = self._tokenizer.pretrained.tokenizer
            is_known = token < len(tokenizer)  # the model may have more
            self._token_texts[token] = str(tokenizer.decode([token])) if is_known else ""
        return self._token_texts[token]

    def _prompt(self, row: _Row) -> str:
        if not row.request.echo or self._tokenizer is None:
            return ""
        if not row.request.example.token_ids:
            return row.request.example.prompt
        return str(self._tokenizer.pretrained.tokenizer.decode(list(row.ids)))


def _scored_text(row: _Row, completion: Completion) -> ScoredText:
    """Return the tokens to score; of an echoed prompt, all but the first."""
    known = 1 if row.request.echo else len(row.ids)
    tokens = (*row.ids[known:], *completion.tokens)
    return ScoredText(row.request.weights.member, row.ids[:known], tokens, row.request.top or 0)


def _refusal(error: Exception, rows: int) -> RequestError:
    """Return the response to the clients of a batch that failed."""
    if isinstance(error, EngineLost):
        return RequestError(503, str(error), code="engine_lost")
    if isinstance(error, GermlineError):
        return RequestError(500, str(error), code="engine_error")
    log.error("a batch of %d rows failed", rows, exc_info=error)
    return RequestError(500, "the engine failed: see the server's log")


def _fail(futures: "Sequence[Future[RowResult]]", error: RequestError) -> None:
    for future in futures:
        with suppress(Exception):  # it was cancelled meanwhile
            future.set_exception(error)
