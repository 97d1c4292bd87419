"""Generate and score rows that have a member and a prompt of their own, in few batches.

Members with the same prompts are a grid, which `Engine.generate` takes. Otherwise the rows are the
first turns of conversations, which may differ between members (`Engine.converse`). That batch is a
rectangle as wide as the longest list of rows of a member, so members with many rows and members
with few have batches of their own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from germline.endpoint.rows import TokenScore
from germline.engines.completion_scorer import LOGITS_AT_ONCE
from germline.protocols import Engine, TextScorer
from germline.types import Completion, Decoding, Example, Perturbation

Row = tuple[Perturbation | None, Example]
Places = list[list[int]]
"""The rows of some members, `[members][rows]`, by their place in the list of all rows."""


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
    engine: Engine,
    texts: Sequence[ScoredText],
    vocabulary: int,
    text_of: Callable[[int], str],
) -> list[tuple[TokenScore, ...]]:
    """Score the tokens of each text; logits of a few texts are in memory at a time.

    Args:
        engine: a `TextScorer` where most likely tokens are asked for.
        texts: in any order.
        vocabulary: number of tokens of the model.
        text_of: returns the text of a token.
    """
    scores: list[tuple[TokenScore, ...]] = [() for _ in texts]
    for places in _parts(texts, max(1, LOGITS_AT_ONCE // vocabulary)):
        together = [texts[place] for place in places]
        examples = [
            Example(i, "", "", chat=False, token_ids=text.prompt) for i, text in enumerate(together)
        ]
        written = [[Completion("", text.tokens, "length", len(text.prompt)) for text in together]]
        member = together[0].member
        if isinstance(engine, TextScorer):
            logits = engine.read([member], examples, written)[0]
            scored = [
                _scored(text, read, text_of) for text, read in zip(together, logits, strict=True)
            ]
        else:
            logs = engine.log_probabilities([member], examples, written)[0]
            scored = [
                tuple(map(TokenScore, map(text_of, text.tokens), row))
                for text, row in zip(together, logs, strict=True)
            ]
        for place, score in zip(places, scored, strict=True):
            scores[place] = score
    return scores


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


def _parts(texts: Sequence[ScoredText], most: int) -> Iterator[list[int]]:
    """Yield the places of texts of one member that have at most so many tokens together, padded."""
    by_member: dict[Perturbation | None, list[int]] = {}
    for place, text in enumerate(texts):
        if text.tokens:
            by_member.setdefault(text.member, []).append(place)
    for places in by_member.values():
        part: list[int] = []
        longest = 0
        for place in sorted(places, key=lambda place: len(texts[place].tokens)):
            longest = len(texts[place].prompt) + len(texts[place].tokens)
            if part and longest * (len(part) + 1) > most:
                yield part
                part = []
            part.append(place)
        yield part
