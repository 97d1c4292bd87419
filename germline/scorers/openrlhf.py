"""The remote reward model of OpenRLHF: POST {query, prompts, labels} -> {rewards}.

`query` holds prompt and response together, `prompts` the prompt alone, `labels` the gold answer.
"""

from collections.abc import Sequence

from germline.config.scorers import OpenRlhf
from germline.scorers.http_service import ServiceScorer
from germline.scorers.text_template import full_prompt, scored_text
from germline.scorers.types import Item, Score, read_numbers, sendable


class OpenRlhfScorer(ServiceScorer):
    """Asks a reward server that was written for OpenRLHF."""

    def __init__(self, config: OpenRlhf, setting: str) -> None:
        super().__init__(setting, config)
        self._template = config.template

    def request_scores(self, items: Sequence[Item]) -> list[Score]:
        """Send one request and read its rewards."""
        body = {
            "query": [sendable(scored_text(self._template, *item)) for item in items],
            "prompts": [sendable(full_prompt(example)) for _, example in items],
            "labels": [example.answer for _, example in items],
        }
        response = self.post("", body)
        rewards = response.get("rewards") if isinstance(response, dict) else response
        return read_numbers(rewards, len(items), "rewards")
