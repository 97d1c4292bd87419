"""An environment that always says the same, for benchmarks: a module that grader workers import."""

from collections.abc import Mapping

from germline.episode_types import Transcript
from germline.types import Example

ANSWER = "c r a n e: X G Y X X"
TURNS = 6


def answer_always(transcript: Transcript, _example: Example) -> Mapping[str, float] | str:
    """Answer every reply but the last one."""
    if len(transcript.replies) == TURNS:
        return {"length": 1.0}
    return ANSWER if transcript.replies else ""


def grade_length(text: str, _example: Example) -> Mapping[str, float]:
    """Grade a single completion as cheaply."""
    return {"length": float(len(text))}
