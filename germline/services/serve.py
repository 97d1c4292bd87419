"""Serve a run or a model as an OpenAI-compatible endpoint."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Literal

from germline.endpoint.engine_batcher import EngineBatcher
from germline.endpoint.http_app import HttpLimits
from germline.endpoint.openai_app import make_endpoint
from germline.endpoint.uvicorn_service import UvicornService, check_address
from germline.services.served_weights import ServedWeights


@dataclass(frozen=True)
class ServeSettings:
    """How a server listens, and what it accepts.

    Attributes:
        max_new_tokens: of a completion.
        max_queue: completions that wait or are being generated.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    limits: HttpLimits = field(default_factory=HttpLimits)
    max_new_tokens: int = 1024
    max_queue: int = 1024


@contextmanager
def endpoint(
    source: str,
    generation: int | Literal["best"] | None = None,
    overrides: Sequence[str] = (),
    settings: ServeSettings | None = None,
) -> Iterator[tuple[UvicornService, ServedWeights]]:
    """Load the weights of a source, and listen during a `with` block; call `run` of the server.

    Args:
        source: a run directory, a model, or a PEFT adapter.
        generation: of a run, the one that `center` names; default: the newest.
        overrides: settings `engine.*` and `microbatch.*`.
        settings: of the server.

    Raises:
        GermlineError: the address cannot be used, or the source cannot be loaded.
    """
    settings = settings or ServeSettings()
    check_address(settings.host, settings.limits.token)
    weights = ServedWeights.open(source, generation, overrides)
    batcher = EngineBatcher(
        weights, max_rows=weights.config.microbatch.rows, max_queue=settings.max_queue
    )
    try:
        app = make_endpoint(weights, batcher, settings.limits, settings.max_new_tokens)
        with closing(UvicornService(app, settings.host, settings.port)) as server:
            yield server, weights
    finally:
        batcher.close()
