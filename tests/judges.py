"""Judges of pairs: servers that decide by a function of both completions."""

import re

from tests.scripted_server import listening

COMPLETIONS = re.compile(r"<answer_A>\n(.*)\n</answer_A>\n<answer_B>\n(.*)\n</answer_B>", re.DOTALL)


def completion_of(text, **message):
    choice = {"message": {"content": text, **message}, "finish_reason": "stop"}
    return 200, {"choices": [choice]}


def judging(decide):
    """Return a server that lists one model, and judges by a function of both completions."""

    def reply(path, body):
        if path == "/models":
            return 200, {"data": [{"id": "the-judge"}]}
        first, second = COMPLETIONS.findall(body["messages"][0]["content"])[0]
        decided = decide(first, second)
        return decided if isinstance(decided, tuple) else completion_of(decided)

    return listening(reply)


def longer(first, second):
    return "Longer. [[A]]" if len(first) > len(second) else "Longer. [[B]]"
