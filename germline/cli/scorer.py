"""The command `germline scorer`: reward and cost models as a service."""

from typing import Annotated, Literal

import typer

from germline.cli.json_output import AsJson
from germline.cli.service_options import (
    Host,
    MaxConcurrent,
    MaxRequestMb,
    Port,
    TimeoutSeconds,
    Token,
    run_until_interrupt,
)

SCORER_EXAMPLES = (
    "germline scorer --reward Skywork/Skywork-Reward-V2-Qwen3-0.6B",
    "germline scorer --reward models/reward --cost models/cost --template pku",
    "GERMLINE_TOKEN=secret germline scorer --reward models/reward --host 0.0.0.0",
)


def scorer(  # noqa: PLR0913 - the options of a command
    *,
    reward: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Sequence classifier whose scores are `rewards`."),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Sequence classifier whose scores are `costs`."),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            help="Text to score: lines, concatenated, pku, or one with {response}; default: the "
            "model's chat template, or lines if it has none."
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="Index or name of the scored class, where a model has several."),
    ] = None,
    output: Annotated[
        Literal["logit", "probability"],
        typer.Option(help="The model's output for the class, or its probability."),
    ] = "logit",
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Longest text in tokens; default: the model's context, <= 4096."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts per forward pass.")] = 16,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:1.")] = "auto",
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        typer.Option(help="Dtype of the models; auto: the stored one on a GPU, else float32."),
    ] = "auto",
    host: Host = "127.0.0.1",
    port: Port = 8100,
    token: Token = None,
    max_concurrent: MaxConcurrent = 256,
    max_queue: Annotated[int, typer.Option(min=1, help="Texts that wait for a model.")] = 4096,
    max_request_mb: MaxRequestMb = 16.0,
    timeout_s: TimeoutSeconds = 600.0,
    as_json: AsJson = False,
) -> None:
    """Serve a reward model, a cost model or both, for `task.scorers` with kind=germline.

    `POST /score_batch` takes prompts and responses, `POST /score_texts` whole texts, `GET /health`
    says whether the models are loaded. Ctrl-C ends the server.
    """
    from pydantic import ValidationError

    from germline.config.scorers import ClassifierSettings
    from germline.endpoint import serve_extra
    from germline.types import GermlineError

    with serve_extra("germline scorer"):
        from germline.endpoint.http_app import HttpLimits
        from germline.services.scorer import ScorerSettings, scorer_service
    sources = {role: one for role, one in (("reward", reward), ("cost", cost)) if one is not None}
    try:
        classifier = ClassifierSettings(
            template=template,
            label=int(label) if label is not None and label.isdecimal() else label,
            output=output,
            max_tokens=max_tokens,
            batch_size=batch_size,
            device=device,
            dtype=dtype,
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = first["msg"].removeprefix("Value error, ")
        raise GermlineError(f"scorer: --{first['loc'][0]}: {why}") from None
    limits = HttpLimits(token, int(max_request_mb * 1e6), max_concurrent, timeout_s)
    with scorer_service(
        sources, classifier, ScorerSettings(host, port, limits, max_queue)
    ) as server:
        lines = f"{' and '.join(sources.values())} at {server.url}"
        values = {"url": server.url, "models": sources, "needs_token": token is not None}
        run_until_interrupt(server, lines, values, as_json=as_json)
