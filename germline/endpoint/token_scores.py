"""Log-probabilities of the tokens of a text, and the most likely tokens at each place."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from germline.engines.completion_scorer import LOGITS_AT_ONCE
from germline.protocols import Engine, TextScorer
from germline.types import Completion, Example, Perturbation


@dataclass(frozen=True)
class TokenScore:
    """One token of a text.

    Attributes:
        text: of the token alone.
        logprob: natural logarithm of its probability at temperature 1; None for the first token of
            a text, which follows nothing.
        top: the most likely tokens at its place, with their logarithms.
    """

    text: str
    logprob: float | None
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class ScoredText:
    """A text to score: the tokens after a prompt.

    Attributes:
        top: how many of the most likely tokens to report.
    """

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
