"""A completion to generate, and the completion, as an endpoint passes them to its engine."""

from dataclasses import dataclass

from germline.endpoint.named_weights import SelectedWeights
from germline.endpoint.token_scores import TokenScore
from germline.types import Completion, Decoding, Example


@dataclass(frozen=True)
class WrittenTurn:
    """A turn of a conversation: the tokens that the model has read and written.

    Attributes:
        ids: of the prompt.
    """

    ids: tuple[int, ...]
    completion: Completion


@dataclass(frozen=True)
class RowRequest:
    """One completion to generate.

    Attributes:
        decoding: how; `max_new_tokens` is the most that the server allows.
        max_new_tokens: what the client asked for; None: as many as there is room for.
        top: how many of the most likely tokens to report; None: no log-probabilities at all.
        echo: whether the tokens of the prompt are scored as well.
        after: the turn that the example's prompt answers, whose tokens are read as they are.
    """

    weights: SelectedWeights
    example: Example
    decoding: Decoding
    max_new_tokens: int | None
    top: int | None = None
    echo: bool = False
    after: WrittenTurn | None = None


@dataclass(frozen=True)
class RowResult:
    """One completion.

    Attributes:
        ids: of the prompt; empty where the engine has no tokenizer.
        prompt: the text of the prompt, where it is echoed.
        scores: of the tokens, those of the prompt first where it is echoed.
    """

    completion: Completion
    ids: tuple[int, ...] = ()
    prompt: str = ""
    scores: tuple[TokenScore, ...] = ()
