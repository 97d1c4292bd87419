"""A grader that does what graders must not, as the text demands; worker processes import it."""

import itertools
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from germline.example import Transcript
from germline.types import Example


def grade(text: str, example: Example) -> Mapping[str, Any]:
    """Do what the text says, then return its length as the part `good`."""
    word, _, rest = text.partition(" ")
    if word in MISDEEDS:
        MISDEEDS[word](rest)
    if word == "return":
        return RETURNS[rest]
    return {"good": os.getpid() if word == "pid" else len(text), "example": example.index}


def play(transcript: Transcript, example: Example) -> Mapping[str, Any] | str:
    """An episode that ends with the reply `end`; other replies do what they say."""
    if not transcript.replies:
        if example.prompt in MISDEEDS:
            MISDEEDS[example.prompt]("at reset")
        return f"seed {transcript.seed}"
    parts = grade(transcript.replies[-1], example)
    if transcript.replies[-1] == "cut me" or not (
        transcript.is_final or transcript.replies[-1] == "end"
    ):
        return f"turn {len(transcript.replies)}"
    return parts


def _loop(_: str) -> None:
    while True:
        pass


def _swallow(_: str) -> None:
    while True:
        try:
            time.sleep(10)
        except BaseException:  # noqa: BLE001 - the misdeed itself
            continue


def _loop_in_c(_: str) -> None:
    all(itertools.repeat(1))  # never runs a bytecode again, so no signal handler either


def _die_once(marker: str) -> None:
    path = Path(marker)
    if not path.exists():
        path.write_text("died", encoding="utf-8")
        os._exit(7)


def _note_and_sleep(marker: str) -> None:
    Path(f"{marker}.partial").write_text(str(os.getpid()), encoding="utf-8")
    Path(f"{marker}.partial").rename(marker)
    time.sleep(1.0)


def _talk(_: str) -> None:
    print("\x00" * 100)  # noqa: T201 - the misdeed itself
    os.write(1, b"garbage\n")
    sys.stdin.read()


def _fork(marker: str) -> None:
    """Die, and leave a child that lives on."""
    if child := os.fork():
        Path(marker).write_text(str(child), encoding="utf-8")
        os._exit(4)
    time.sleep(3600)


def _fork_and_return(_: str) -> None:
    if child := os.fork():
        os.waitpid(child, 0)


def _raise(message: str) -> None:
    raise ValueError(message)


def _own_alarm(_: str) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)


MISDEEDS = {
    "loop": _loop,
    "swallow": _swallow,
    "loop-in-c": _loop_in_c,
    "die": lambda _: os._exit(3),
    "fork": _fork,
    "fork-and-return": _fork_and_return,
    "die-once": _die_once,
    "note-and-sleep": _note_and_sleep,
    "talk": _talk,
    "raise": _raise,
    "leave": lambda _: sys.exit("bye"),
    "segfault": lambda _: os.kill(os.getpid(), signal.SIGSEGV),
    "alarm": _own_alarm,
    "sleep": lambda seconds: time.sleep(float(seconds)),
}
RETURNS: dict[str, Mapping[str, Any]] = {
    "nan": {"good": float("nan"), "example": 0},
    "text": {"good": "very", "example": 0},
    "less": {"example": 0},
    "more": {"good": 1.0, "example": 0, "evil": 2.0},
}
