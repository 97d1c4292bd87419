"""Grade by exact match: 1 if the completion, stripped of white space, equals the gold answer."""

from collections.abc import Mapping

from germline.example import Example


def grade_exact(text: str, example: Example) -> Mapping[str, float]:
    """Return the part `exact`."""
    return {"exact": float(text.strip() == example.answer)}
