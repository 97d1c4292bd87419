"""Pooling models that vLLM serves: `/classify` and `/score`."""

from collections.abc import Sequence
from typing import Any

from germline.config.scorers import VllmClassify, VllmScore, VllmScorer
from germline.scorers.http_service import ServiceScorer
from germline.scorers.text_template import full_prompt, scored_text
from germline.scorers.types import Item, NotScoredError, Score, read_number, read_numbers, sendable


class PoolingScorer(ServiceScorer):
    """Asks vLLM for one pooled output per completion."""

    def __init__(self, config: VllmScorer, setting: str) -> None:
        super().__init__(setting, config)
        model = {} if config.model is None else {"model": config.model}
        self._fields: dict[str, Any] = {**model, **config.options}

    def pooled(self, path: str, texts: dict[str, list[str]], count: int) -> list[dict[str, Any]]:
        """Return the output of every text, in the order of the request.

        Raises:
            NotScoredError: the response has another shape.
        """
        response = self.post(path, {**self._fields, **texts})
        rows = response.get("data") if isinstance(response, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise NotScoredError(
                f"the response of {path} has no list `data`, found {repr(response)[:80]}"
            )
        by_index = {row.get("index", place): row for place, row in enumerate(rows)}
        if sorted(by_index) != list(range(count)):
            raise NotScoredError(
                f"the response of {path} has {len(rows)} outputs for {count} completions"
            )
        return [by_index[place] for place in range(count)]


class ClassifyScorer(PoolingScorer):
    """The probability of one class, or the only output of a reward model."""

    def __init__(self, config: VllmClassify, setting: str) -> None:
        super().__init__(config, setting)
        self._template, self._label = config.template, config.label

    def request_scores(self, items: Sequence[Item]) -> list[Score]:
        """Classify prompt and completion."""
        texts = [sendable(scored_text(self._template, *item)) for item in items]
        rows = self.pooled("/classify", {"input": texts}, len(items))
        return [self._of_class(row.get("probs")) for row in rows]

    def _of_class(self, probabilities: object) -> Score:
        if not isinstance(probabilities, list) or not probabilities:
            return read_number(probabilities)
        if self._label is None and len(probabilities) > 1:
            raise NotScoredError(
                f"the model has {len(probabilities)} classes: set {self.setting}.label to the "
                f"index of one of them, 0 to {len(probabilities) - 1}"
            )
        label = self._label or 0
        if label >= len(probabilities):
            raise NotScoredError(
                f"{self.setting}.label={label}: the model has {len(probabilities)} classes: use "
                f"an index up to {len(probabilities) - 1}"
            )
        return read_number(probabilities[label])


class PairScorer(PoolingScorer):
    """The score of the pair of prompt and completion."""

    def __init__(self, config: VllmScore, setting: str) -> None:
        super().__init__(config, setting)

    def request_scores(self, items: Sequence[Item]) -> list[Score]:
        """Score every completion against its own prompt."""
        pairs = {
            "text_1": [sendable(full_prompt(example)) for _, example in items],
            "text_2": [sendable(text) for text, _ in items],
        }
        rows = self.pooled("/score", pairs, len(items))
        return read_numbers([row.get("score") for row in rows], len(items), "data")
