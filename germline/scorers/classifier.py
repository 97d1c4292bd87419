"""A sequence classifier in the training process as a scorer."""

from collections.abc import Sequence

from germline.config.scorers import Classifier
from germline.scorers.sequence_classifier import SequenceClassifier, SettingNames
from germline.scorers.types import Item, Score

BATCHES_AT_A_TIME = 8
"""Batches whose texts are sorted by length together."""


class ClassifierScorer:
    """Scores completions by a model that is loaded here."""

    concurrency = 1
    reports_truncation = True

    def __init__(self, config: Classifier, setting: str) -> None:
        self.batch_size = BATCHES_AT_A_TIME * config.batch_size
        names = SettingNames(f"{setting}.model", f"{setting}.{{}}")
        self._model = SequenceClassifier(config.model, config, names)

    def score(self, items: Sequence[Item]) -> list[Score]:
        """Score completions in batches of similar length."""
        return self._model.score([self._model.encode_pair(item) for item in items])

    def close(self) -> None:
        """Release nothing: the model goes with this object."""
