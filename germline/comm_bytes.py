"""What travels between a run and its engines elsewhere, in bytes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommBytes:
    """Bytes between a run and its engines elsewhere, their states left out.

    Attributes:
        sent: to engines.
        received: from engines.
        text: how many of both are prompts and completions.
    """

    sent: int = 0
    received: int = 0
    text: int = 0

    def __add__(self, other: "CommBytes") -> "CommBytes":
        return CommBytes(
            self.sent + other.sent, self.received + other.received, self.text + other.text
        )

    def __sub__(self, other: "CommBytes") -> "CommBytes":
        return CommBytes(
            self.sent - other.sent, self.received - other.received, self.text - other.text
        )

    @property
    def non_text(self) -> int:
        """What is left without prompts and completions."""
        return self.sent + self.received - self.text
