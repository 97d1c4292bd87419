"""Normalize an answer, so that equal answers in different spellings compare equal."""


def normalize_answer(text: str) -> str | None:
    """Drop case, repeated white space and a full stop at the end; None for an empty text.

    Majority votes compare answers in this form if a task does not define its own.
    """
    return " ".join(text.split()).casefold().rstrip(".") or None
