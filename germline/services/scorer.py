"""Serve reward and cost models to trainings on other devices and machines."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from germline.config.scorers import ClassifierSettings
from germline.endpoint.http_app import HttpLimits
from germline.endpoint.http_server import HttpServer, check_address
from germline.scorers.sequence_classifier import SequenceClassifier, SettingNames
from germline.services.scorer_app import ScorerModels, make_scorer_app
from germline.types import GermlineError


@dataclass(frozen=True)
class ScorerSettings:
    """How a scorer listens, and what it accepts.

    Attributes:
        max_queue: texts that wait, beyond which requests are refused.
    """

    host: str = "127.0.0.1"
    port: int = 8100
    limits: HttpLimits = field(default_factory=HttpLimits)
    max_queue: int = 4096


@contextmanager
def scorer_service(
    sources: Mapping[str, str],
    classifier: ClassifierSettings,
    settings: ScorerSettings | None = None,
) -> Iterator[HttpServer]:
    """Load models and listen during a `with` block; call `run` of the server.

    Args:
        sources: `reward`, `cost` or both -> folder or Hugging Face id.
        classifier: how the models read texts.
        settings: of the server.

    Raises:
        GermlineError: the address cannot be used, or a model cannot be loaded.
    """
    settings = settings or ScorerSettings()
    check_address(settings.host, settings.limits.token)
    if not sources:
        raise GermlineError("scorer: there is no model: give --reward MODEL, --cost MODEL or both")
    models = {
        role: SequenceClassifier(source, classifier, SettingNames(f"--{role}", "--{}"))
        for role, source in sources.items()
    }
    with closing(ScorerModels(models, classifier.batch_size, settings.max_queue)) as served:
        app = make_scorer_app(served, dict(sources), settings.limits)
        with closing(HttpServer(app, settings.host, settings.port)) as server:
            yield server
