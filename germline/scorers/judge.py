"""A language model that grades completions: a message to `/chat/completions`, a number back.

The grade is the last `[[number]]` of the reply, or the whole reply where it is a bare number. A
reply without a grade, a refusal, and a grade out of range are missing scores: the judge failed, and
not the model that is trained.

Known limit: a completion can address the judge. The default message puts it between tags and calls
it data; a judge may follow it all the same.
"""

import re
from collections.abc import Sequence
from typing import Any

from germline.config.scorers import Judge
from germline.scorers.http_scorer import ServiceScorer
from germline.scorers.text_template import fill_template, full_prompt
from germline.scorers.types import Item, Score, missing, sendable

_NUMBER = r"[-+]?[0-9]+(?:\.[0-9]+)?"
_GRADE = re.compile(rf"\[\[\s*({_NUMBER})\s*\]\]")
_BARE = re.compile(rf"\s*({_NUMBER})\s*")
_LONGEST_SHOWN = 80


class JudgeScorer(ServiceScorer):
    """Asks a judge about one completion per request."""

    def __init__(self, config: Judge, name: str) -> None:
        super().__init__(name, config)
        self._config = config

    def request_scores(self, items: Sequence[Item]) -> list[Score]:
        """Ask for the grade of the only completion of the batch."""
        ((text, example),) = items
        config = self._config
        message = fill_template(
            config.template,
            {
                "prompt": sendable(full_prompt(example)),
                "response": sendable(text),
                "answer": example.answer,
                "lowest": f"{config.lowest:g}",
                "highest": f"{config.highest:g}",
            },
        )
        response = self.post(
            "/chat/completions",
            {
                "model": config.model,
                "messages": [{"role": "user", "content": message}],
                "max_tokens": config.max_new_tokens,
                "temperature": config.temperature,
                **config.options,
            },
        )
        return [self._read(response)]

    def _read(self, response: Any) -> Score:
        try:
            choice = response["choices"][0]
            reply, refusal = choice["message"].get("content"), choice["message"].get("refusal")
        except (KeyError, IndexError, TypeError, AttributeError):
            return missing(f"the judge's response is no chat completion: {_short(response)}")
        if not isinstance(reply, str) or not reply.strip():
            why = f"refuses: {_short(refusal)}" if refusal else "gives no reply"
            return missing(f"the judge {why}")
        return self._grade(reply, choice.get("finish_reason"))

    def _grade(self, reply: str, finish: object) -> Score:
        grades = _GRADE.findall(reply) or _BARE.fullmatch(reply)
        if not grades:
            cut = ", and was cut at max_new_tokens" if finish == "length" else ""
            return missing(f"the judge's reply has no grade such as [[7]]{cut}: {_short(reply)}")
        grade = float(grades[-1] if isinstance(grades, list) else grades.group(1))
        lowest, highest = self._config.lowest, self._config.highest
        if not lowest <= grade <= highest:
            return missing(f"the judge's grade {grade:g} is not from {lowest:g} to {highest:g}")
        return Score((grade - lowest) / (highest - lowest))


def _short(value: object) -> str:
    """Show the end of a long reply, where the grade should have been."""
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return repr(text if len(text) <= _LONGEST_SHOWN else f"...{text[-_LONGEST_SHOWN:]}")
