"""What is asked of the engine for one completion, and what comes back."""

from dataclasses import dataclass

from germline.endpoint.named_weights import SelectedWeights
from germline.endpoint.token_scores import TokenScore
from germline.types import Completion, Decoding, Example


@dataclass(frozen=True)
class RowRequest:
    """One completion to generate.

    Attributes:
        decoding: how; `max_new_tokens` is the most that the server allows.
        max_new_tokens: what the client asked for; None: as many as there is room for.
        top: how many of the most likely tokens to report; None: no log-probabilities at all.
        echo: whether the tokens of the prompt are scored as well.
    """

    weights: SelectedWeights
    example: Example
    decoding: Decoding
    max_new_tokens: int | None
    top: int | None = None
    echo: bool = False


@dataclass(frozen=True)
class RowResult:
    """One completion.

    Attributes:
        prompt: the text of the prompt, where it is echoed.
        scores: of the tokens, those of the prompt first where it is echoed.
    """

    completion: Completion
    prompt: str = ""
    scores: tuple[TokenScore, ...] = ()
