"""What a completion answers, in words that two completions share where they say the same."""


def normalize_answer(text: str) -> str | None:
    """Return a text without regard to case, white space and a full stop at the end; None if empty.

    What answers are compared by where a task knows no better way.
    """
    return " ".join(text.split()).casefold().rstrip(".") or None
