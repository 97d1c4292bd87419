"""Rows of requests: tokenized, generated in one batch, and scored.

Rows can be generated together if they have the same center, longest completion, temperature, top_p
and stop strings. Members may differ.

Members with the same prompts are a grid, which `Engine.generate` takes. Otherwise the rows are the
first turns of conversations, which may differ between members (`Engine.converse`). That batch is a
rectangle as wide as the longest list of rows of a member, so members with many rows and members
with few have batches of their own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from torch import Tensor

from germline.endpoint.http_app import RequestError
from germline.endpoint.rows import NamedWeights, RowRequest, RowResult, TokenScore
from germline.engines.completion_scorer import LOGITS_AT_ONCE
from germline.engines.pretrained import PretrainedModel
from germline.engines.prompt_batch import PromptEncoder, encode_prompt
from germline.protocols import Engine, TextScorer
from germline.types import Completion, Decoding, Example, Perturbation

Row = tuple[Perturbation | None, Example]
Places = list[list[int]]
"""The rows of some members, `[members][rows]`, by their place in the list of all rows."""


@runtime_checkable
class HasTokenizer(Protocol):
    """An engine with the tokenizer of a model."""

    pretrained: PretrainedModel
    encoder: PromptEncoder


class RowGenerator:
    """Generates and scores rows with one engine, which only one thread uses."""

    def __init__(self, weights: NamedWeights) -> None:
        self._weights = weights
        engine = weights.engine
        self._tokenized = engine if isinstance(engine, HasTokenizer) else None
        self._token_texts: dict[int, str] = {}

    def encode(self, request: RowRequest) -> RowRequest:
        """Return a row with its tokens and longest completion, or refuse what does not fit."""
        self._check_supported(request)
        ids = self._ids(request)
        length = len(ids) if self._tokenized else len(request.example.prompt)
        context = self._tokenized.encoder.context_tokens if self._tokenized else None
        longest = request.max_new_tokens
        if longest is None:
            longest = request.decoding.max_new_tokens
            longest = longest if context is None else max(1, min(longest, context - length))
        if context is not None and length + longest > context:
            raise RequestError(
                400,
                f"the prompt has {length} tokens and max_tokens is {longest}; the model's context "
                f"has {context}: shorten the prompt or lower max_tokens",
                param="max_tokens",
                code="context_length_exceeded",
            )
        decoding = replace(request.decoding, max_new_tokens=longest)
        return replace(request, ids=ids, decoding=decoding)

    def batch_key(self, row: RowRequest) -> tuple[object, ...]:
        """Return what rows of one batch have in common."""
        decoding = row.decoding
        top_p = decoding.top_p if decoding.temperature else 1.0
        return row.weights.generation, replace(decoding, top_p=top_p)

    def generate(self, batch: Sequence[RowRequest]) -> list[RowResult]:
        """Generate and score encoded rows that can be generated together."""
        self._weights.load(batch[0].weights)
        decoding = batch[0].decoding
        if decoding.max_new_tokens:
            rows = [(row.weights.member, replace(row.example, token_ids=row.ids)) for row in batch]
            completions = generate_rows(self._weights.engine, rows, decoding)
        else:
            completions = [Completion("", (), "length", len(row.ids)) for row in batch]
        scores = self._scores(batch, completions)
        return [
            RowResult(completion, row.ids, self._echoed(row), score)
            for row, completion, score in zip(batch, completions, scores, strict=True)
        ]

    def _check_supported(self, request: RowRequest) -> None:
        kind = self._weights.engine_kind
        needs_tokenizer = request.top is not None or request.echo or request.example.token_ids
        if self._tokenized is None and needs_tokenizer:
            raise RequestError(
                400,
                f"engine.kind={kind} has no tokenizer: leave out echo, logprobs and prompts of "
                "token ids, or serve with engine=inprocess",
            )
        tokenizer = self._tokenized.pretrained.tokenizer if self._tokenized else None
        if request.example.chat and tokenizer is not None and not tokenizer.chat_template:
            raise RequestError(
                400, "the model's tokenizer has no chat template: use /v1/completions"
            )
        if request.top and not isinstance(self._weights.engine, TextScorer):
            raise RequestError(
                400,
                f"engine.kind={kind} does not report the most likely tokens: use logprobs=0, "
                "or serve with engine=inprocess",
                param="logprobs",
            )

    def _ids(self, request: RowRequest) -> tuple[int, ...]:
        """Return the tokens of a prompt; none where the engine has no tokenizer."""
        if self._tokenized is None:
            return ()
        # `encoder.encode` would keep the tokens of every prompt. `index` is that of the noise.
        example, encoder = replace(request.example, index=0), self._tokenized.encoder
        ids: Sequence[int] = example.token_ids
        if (last := request.after) is not None:
            answer = encoder.encode_answer(example, last.completion, example.prompt)
            ids = (*last.ids, *last.completion.tokens, *answer)
        elif not ids:
            pretrained = self._tokenized.pretrained
            ids = encode_prompt(pretrained.tokenizer, example, pretrained.date)
        return tuple(encoder.encode(replace(example, token_ids=tuple(ids))))

    def _scores(
        self, batch: Sequence[RowRequest], completions: Sequence[Completion]
    ) -> list[tuple[TokenScore, ...]]:
        """Score the tokens of the rows that ask for it; of an echoed prompt, all but the first."""
        scores: list[tuple[TokenScore, ...]] = [() for _ in batch]
        texts = {}
        for place, (row, completion) in enumerate(zip(batch, completions, strict=True)):
            if row.top is not None:
                known = 1 if row.echo else len(row.ids)
                tokens = (*row.ids[known:], *completion.tokens)
                texts[place] = ScoredText(row.weights.member, row.ids[:known], tokens, row.top)
                if row.echo:
                    scores[place] = (TokenScore(self._token_text(row.ids[0]), None),)
        if texts and self._tokenized is not None:
            vocabulary = int(self._tokenized.pretrained.model.get_input_embeddings().num_embeddings)
            most = max(1, LOGITS_AT_ONCE // vocabulary)
            for part in _parts(texts, most):
                scored = score_texts(self._weights.engine, [*part.values()], self._token_text)
                for place, score in zip(part, scored, strict=True):
                    scores[place] += score
        return scores

    def _token_text(self, token: int) -> str:
        assert self._tokenized is not None
        if token not in self._token_texts:
            tokenizer = self._tokenized.pretrained.tokenizer
            is_known = token < len(tokenizer)  # the model may have more
            self._token_texts[token] = str(tokenizer.decode([token])) if is_known else ""
        return self._token_texts[token]

    def _echoed(self, row: RowRequest) -> str:
        if not row.echo or self._tokenized is None:
            return ""
        if not row.example.token_ids:
            return row.example.prompt
        return str(self._tokenized.pretrained.tokenizer.decode(list(row.ids)))


def generate_rows(engine: Engine, rows: Sequence[Row], decoding: Decoding) -> list[Completion]:
    """Return the completion of each row's example by the row's member."""
    of_member: dict[Perturbation | None, list[int]] = {}
    for place, (member, _) in enumerate(rows):
        of_member.setdefault(member, []).append(place)
    grids: dict[tuple[object, ...], Places] = {}
    for places in of_member.values():
        ordered = sorted(places, key=lambda place: _key(rows[place][1]))
        grids.setdefault(tuple(_key(rows[place][1]) for place in ordered), []).append(ordered)
    completions: dict[int, Completion] = {}
    if len(grids) == 1:
        (grid,) = grids.values()
        members = [rows[places[0]][0] for places in grid]
        generated = engine.generate(members, [rows[place][1] for place in grid[0]], decoding)
        for places, written in zip(grid, generated, strict=True):
            completions |= zip(places, written, strict=True)
    else:
        # The longest list of a batch is not twice the shortest.
        by_length: dict[int, Places] = {}
        for places in of_member.values():
            by_length.setdefault(len(places).bit_length(), []).append(places)
        for ragged in by_length.values():
            completions |= _of_conversations(engine, rows, ragged, decoding)
    return [completions[place] for place in range(len(rows))]


def _of_conversations(
    engine: Engine, rows: Sequence[Row], ragged: Places, decoding: Decoding
) -> dict[int, Completion]:
    """Generate for members with different examples: one turn of conversations."""
    completions: dict[int, Completion] = {}

    def end(
        places: Sequence[tuple[int, int]], written: Sequence[Completion]
    ) -> Sequence[str | None]:
        for (member, number), completion in zip(places, written, strict=True):
            completions[ragged[member][number]] = completion
        return [None] * len(places)

    members = [rows[places[0]][0] for places in ragged]
    prompts = [[rows[place][1] for place in places] for places in ragged]
    engine.converse(members, prompts, decoding, end)
    return completions


def _key(example: Example) -> tuple[object, ...]:
    """Return what a completion of the example depends on."""
    text = example.token_ids, example.prompt, example.chat, example.context
    return *text, example.index, example.sample


@dataclass(frozen=True)
class ScoredText:
    """A text to score: the tokens after a prompt; `top` of the most likely ones are reported."""

    member: Perturbation | None
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    top: int


def score_texts(
    engine: Engine, texts: Sequence[ScoredText], text_of: Callable[[int], str]
) -> list[tuple[TokenScore, ...]]:
    """Score the tokens of texts of one member; `text_of` returns the text of a token."""
    examples = [
        Example(i, "", "", chat=False, token_ids=text.prompt) for i, text in enumerate(texts)
    ]
    written = [[Completion("", text.tokens, "length", len(text.prompt)) for text in texts]]
    members = [texts[0].member]
    if isinstance(engine, TextScorer):
        logits = engine.read(members, examples, written)[0]
        return [_scored(*pair, text_of) for pair in zip(texts, logits, strict=True)]
    logs = engine.log_probabilities(members, examples, written)[0]
    return [
        tuple(map(TokenScore, map(text_of, text.tokens), row))
        for text, row in zip(texts, logs, strict=True)
    ]


def _scored(
    text: ScoredText, logits: Tensor, text_of: Callable[[int], str]
) -> tuple[TokenScore, ...]:
    logs = logits.float().log_softmax(-1).cpu()
    own = logs[range(len(text.tokens)), list(text.tokens)].tolist()
    words = [text_of(token) for token in text.tokens]
    if not text.top:
        return tuple(map(TokenScore, words, own))
    values, tokens = logs.topk(min(text.top, logs.shape[1]), dim=-1)
    tops = [
        tuple((text_of(token), value) for token, value in zip(*row, strict=True))
        for row in zip(tokens.tolist(), values.tolist(), strict=True)
    ]
    return tuple(map(TokenScore, words, own, tops))


def _parts(texts: dict[int, ScoredText], most: int) -> Iterator[dict[int, ScoredText]]:
    """Yield texts of one member that have at most so many tokens together, padded."""
    by_member: dict[Perturbation | None, list[int]] = {}
    for place, text in texts.items():
        if text.tokens:
            by_member.setdefault(text.member, []).append(place)
    for places in by_member.values():
        part: dict[int, ScoredText] = {}
        for place in sorted(places, key=lambda place: len(texts[place].tokens)):
            longest = len(texts[place].prompt) + len(texts[place].tokens)
            if part and longest * (len(part) + 1) > most:
                yield part
                part = {}
            part[place] = texts[place]
        yield part
