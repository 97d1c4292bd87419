"""A language model that grades completions: a message to `/chat/completions`, a number back.

The grade is a `[[number]]` (`judge_reply` says which one counts), or the whole reply where it is a
bare number. `7/10` and `7 out of 10` are the grade 7 where the best grade is 10. A
reply without a grade or with several, a refusal, a grade out of range and one of another scale are
missing scores: the judge failed, and not the model that is trained.

Known limit: a completion can address the judge. The default message puts it between tags and calls
it data; a judge may follow it all the same.
"""

import re
from collections.abc import Sequence

from germline.config.scorers import Judge
from germline.scorers.http_service import ServiceScorer
from germline.scorers.judge_reply import Reply, ask_model, chat_request, read_reply, read_verdict
from germline.scorers.text_template import fill_template, full_prompt
from germline.scorers.types import Item, NotScoredError, Score, missing, sendable

_NUMBER = r"[-+]?[0-9]+(?:\.[0-9]+)?"
_GRADE = rf"{_NUMBER}(?:\s*(?:/|out of)\s*{_NUMBER})?"
_BARE = re.compile(rf"\s*({_GRADE})\s*", re.IGNORECASE)


class JudgeScorer(ServiceScorer):
    """Asks a judge about one completion per request."""

    def __init__(self, config: Judge, setting: str) -> None:
        super().__init__(setting, config)
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
        response = ask_model(self, chat_request(config, config.model, message))
        try:
            return [self._grade(read_reply(response))]
        except NotScoredError as error:
            return [missing(str(error))]

    def _grade(self, reply: Reply) -> Score:
        bare = _BARE.fullmatch(reply.text)
        grade = (
            self._number(bare.group(1))
            if bare
            else read_verdict(reply, _GRADE, self._number, "such as [[7]]")
        )
        lowest, highest = self._config.lowest, self._config.highest
        if not lowest <= grade <= highest:
            return missing(f"the judge's grade {grade:g} is not from {lowest:g} to {highest:g}")
        return Score((grade - lowest) / (highest - lowest))

    def _number(self, written: str) -> float:
        """Return the number of a grade such as `7` or `7/10`.

        Raises:
            NotScoredError: it is out of another number than the best grade.
        """
        number, *largest = map(float, re.findall(_NUMBER, written))
        lowest, highest = self._config.lowest, self._config.highest
        if largest and largest != [highest]:
            raise NotScoredError(
                f"the judge's grade {written!r} is out of {largest[0]:g}, and grades are from "
                f"{lowest:g} to {highest:g}: the template must ask for such a number"
            )
        return number
