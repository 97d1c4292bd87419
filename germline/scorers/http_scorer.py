"""The base of scorers that ask a service, and what they do with a batch that is refused.

A service that refuses a batch may refuse one text of it, such as one that is too long. The batch is
then halved until the refused texts are found, so that the others are scored.
"""

from collections.abc import Sequence

from germline.config.scorers import HttpScorer
from germline.engines.served.http_client import RequestRefused
from germline.scorers.http_service import REFUSED_FOR_ALL, HttpService
from germline.scorers.types import Item, NotScoredError, Score, missing


class ServiceScorer(HttpService):
    """Asks a service for scores; subclasses say what is sent and how the response is read.

    Args:
        setting: name of the section, such as `task.scorers.helpful`.
        config: its settings.

    Raises:
        GermlineError: the environment variable with the token is not set.
    """

    reports_truncation = False

    def __init__(self, setting: str, config: HttpScorer) -> None:
        super().__init__(config, lambda field: f"{setting}.{field}")
        self.setting = setting
        self.batch_size: int = getattr(config, "batch_size", 1)
        self.concurrency = config.concurrency

    def score(self, items: Sequence[Item]) -> list[Score]:
        """Score completions; a batch that is refused is scored in halves.

        Raises:
            NotScoredError: nothing of the batch can be scored.
        """
        try:
            return self.request_scores(items)
        except RequestRefused as refusal:
            if refusal.status in REFUSED_FOR_ALL:
                raise NotScoredError(str(refusal)) from None
            if len(items) == 1:
                return [missing(str(refusal))]
        middle = len(items) // 2
        return [*self.score(items[:middle]), *self.score(items[middle:])]

    def request_scores(self, items: Sequence[Item]) -> list[Score]:
        """Send one request and read its response; override this.

        Raises:
            NotScoredError: the response cannot be read.
            RequestRefused: the service refuses the request.
        """
        raise NotImplementedError
