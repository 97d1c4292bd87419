"""The command `germline serve`: a run or a model over OpenAI's API, or reward models."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli.arguments import Generation, read_section, split_words
from germline.cli.output import AsJson, print_json

if TYPE_CHECKING:
    from germline.endpoint.uvicorn_service import UvicornService

TOKEN_VARIABLE = "GERMLINE_TOKEN"

SERVED_SETTINGS = ("engine.", "engine=", "microbatch.")
"""Prefixes of settings that have an effect on a run or a model; other settings are refused."""

SERVE_EXAMPLES = (
    "germline serve runs/sums",
    "germline serve runs/sums --generation best --port 9000",
    "germline serve Qwen/Qwen2.5-0.5B-Instruct engine.dtype=bfloat16",
    "GERMLINE_TOKEN=secret germline serve runs/sums --host 0.0.0.0",
    "germline serve --reward models/reward --cost models/cost template=pku",
)


def serve(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|MODEL|KEY=VALUE",
            help="A run or a model, with settings engine.* and microbatch.*; or, with --reward or "
            "--cost, settings of these models: template, label, output, max_tokens, batch_size, "
            "device and dtype.",
        ),
    ] = None,
    generation: Generation = None,
    host: Annotated[
        str,
        typer.Option(help="Address to listen at; beyond loopback, set $GERMLINE_TOKEN."),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port to listen at; 0: any free one. Default: 8000, scorers 8100.",
        ),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Serve this sequence classifier's scores as `rewards`."),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Serve this sequence classifier's scores as `costs`."),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Serve a run or a model to clients of OpenAI's API, or reward models to trainings.

    The `model` of a request is base, center (with --generation, the weights after that one), gen-12
    (those after generation 12) or gen-12/member-7 (a member that generation 12 evaluated).

    With --reward, --cost or both it serves these models for `task.scorers` with kind=germline:
    `POST /score_batch` takes prompts and responses, `GET /health` says whether the models are
    loaded.

    Ctrl-C ends the server.
    """
    from germline.config.scorers import ClassifierSettings
    from germline.endpoint import serve_extra
    from germline.record.run_paths import check_source
    from germline.types import GermlineError

    scorers = {role: one for role, one in (("reward", reward), ("cost", cost)) if one is not None}
    sources, settings = split_words("serve", words, ("",) if scorers else SERVED_SETTINGS)
    if len(sources) + bool(scorers) != 1:
        raise GermlineError(
            f"serve: found {', '.join([*sources, *scorers.values()]) or 'nothing to serve'}: name "
            "one run or model, or --reward MODEL, --cost MODEL or both"
        )
    if scorers and generation is not None:
        raise GermlineError(
            "serve: --generation would be ignored with --reward and --cost: drop it"
        )
    if sources:
        check_source(Path(sources[0]))
    with serve_extra("germline serve"):
        from germline.services.scorer import scorer_service
        from germline.services.serve import endpoint
    token = os.environ.get(TOKEN_VARIABLE) or None
    port = (8100 if scorers else 8000) if port is None else port
    if scorers:
        classifier = read_section("serve", ClassifierSettings, settings, "")
        with scorer_service(scorers, classifier, host, port, token) as server:
            values: dict[str, object] = {"url": server.url, "models": scorers}
            lines = f"{' and '.join(scorers.values())} at {server.url}"
            _run_until_interrupt(server, lines, values, token, as_json=as_json)
        return
    with endpoint(sources[0], generation, settings, host, port, token) as (server, weights):
        names, center = weights.names(), weights.select("center").fingerprint
        values = {"base_url": f"{server.url}/v1", "models": names, "center": center}
        shown = ", ".join(names if len(names) <= 4 else [*names[:3], "...", names[-1]])
        lines = f"{sources[0]} at {server.url}/v1\nmodels: {shown}; center has digest {center[:16]}"
        if not weights.sends_chats:
            lines += (
                "\nThe run sent its prompts as they are: ask /v1/completions. /v1/chat/completions "
                "uses the chat template, which the run did not."
            )
        values["chat"] = weights.sends_chats
        _run_until_interrupt(server, lines, values, token, as_json=as_json)


def _run_until_interrupt(
    server: "UvicornService",
    lines: str,
    values: Mapping[str, object],
    token: str | None,
    *,
    as_json: bool,
) -> None:
    """Print what a server serves, as text or as JSON, and run it until Ctrl-C."""
    if as_json:
        print_json({**values, "needs_token": token is not None})
    else:
        typer.echo(f"{lines}\nCtrl-C ends the server.")
    with suppress(KeyboardInterrupt):
        server.run()
    if not as_json:
        typer.echo("The server has ended.")
