"""Pairs of completions that a judge compares, and the file of its replies.

Every judged pair is a line of the file, written as soon as it is judged. A request that the file
has a reply for is not sent again, so an interrupted comparison goes on where it ended, and another
model or more prompts cost only what is new. A request is known by its content: the judge's model
and settings, the prompt and both completions. A request that the judge refused, or did not answer
in time, is sent again.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from germline.record.atomic_files import append_rows, keep_rows, read_each
from germline.scorers.pairwise_judge import JudgeReply
from germline.scorers.text_template import full_prompt
from germline.types import Example

Outcome = Literal["decided", "abstained", "no verdict"]
Request = Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """The completions of two models for one example, and the requests to the judge.

    Attributes:
        requests: the first has the completions in the order of `models`, the second swapped.
    """

    example: Example
    models: tuple[str, str]
    completions: tuple[str, str]
    requests: tuple[Request, Request]

    @cached_property
    def digests(self) -> tuple[str, str]:
        """What identifies the requests."""
        one, two = map(request_digest, self.requests)
        return one, two


@dataclass(frozen=True)
class Judgment:
    """A judged pair; it is decided if both replies prefer the same completion."""

    pair: Pair
    replies: tuple[JudgeReply, JudgeReply]

    @property
    def winner(self) -> str | None:
        """The model whose completion is preferred in both orders."""
        as_given, swapped = (reply.preferred for reply in self.replies)
        if as_given is None or swapped is None or as_given == swapped:
            return None
        return self.pair.models[0 if as_given == "first" else 1]

    @property
    def outcome(self) -> Outcome:
        """Whether there is a winner, or why not."""
        if any(reply.preferred is None for reply in self.replies):
            return "no verdict"
        return "abstained" if self.winner is None else "decided"


class JudgmentFile:
    """The replies of a judge, by request.

    Raises:
        GermlineError: a line of the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        keep_rows(path, lambda _: True)  # a killed process may have left an incomplete line
        self._replies: dict[str, JudgeReply] = {}
        self._complete: set[tuple[str, ...]] = set()
        for key, replies in read_each(path, _read_row):
            answered = {digest: one for digest, one in replies.items() if one.text is not None}
            self._replies |= answered
            if len(answered) == len(replies):
                self._complete.add(key)

    def missing(self, pairs: Sequence[Pair]) -> dict[str, Request]:
        """Return the requests of pairs without a reply, by digest."""
        return {
            digest: request
            for pair in pairs
            for digest, request in zip(pair.digests, pair.requests, strict=True)
            if digest not in self._replies
        }

    def add(self, digest: str, reply: JudgeReply) -> None:
        """Take a reply; `write` puts it into the file."""
        self._replies[digest] = reply

    def judgment(self, pair: Pair) -> Judgment:
        """Return the judgment of a pair that has both replies."""
        one, two = (self._replies[digest] for digest in pair.digests)
        return Judgment(pair, (one, two))

    def write(self, pair: Pair) -> bool:
        """Append a pair unless the file has it; return whether it has both replies."""
        if any(digest not in self._replies for digest in pair.digests):
            return False
        key = (*pair.models, *pair.digests)
        if key not in self._complete:
            append_rows(self.path, [_row(self.judgment(pair))])
            self._complete.add(key)
        return True


def request_digest(request: Request) -> str:
    """Return what identifies a request."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:32]


def _row(judgment: Judgment) -> dict[str, Any]:
    pair = judgment.pair
    return {
        "example": pair.example.index,
        "prompt": full_prompt(pair.example),
        "models": pair.models,
        "completions": pair.completions,
        "outcome": judgment.outcome,
        "winner": judgment.winner,
        "replies": [
            {"first": first, "request": digest, **asdict(reply)}
            for first, digest, reply in zip(
                pair.models, pair.digests, judgment.replies, strict=True
            )
        ],
    }


def _read_row(row: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, JudgeReply]]:
    """Read the key of a row, which is its models and requests, and the replies by request."""
    replies = {
        one["request"]: JudgeReply(one["preferred"], one["text"], one["failure"])
        for one in row["replies"]
    }
    return (*row["models"], *replies), replies
