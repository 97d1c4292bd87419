"""The command `germline serve`: an OpenAI-compatible endpoint of a run or a model."""

from pathlib import Path
from typing import Annotated

import typer

from germline.cli import shell_completion
from germline.cli.arguments import Source, check_prefixes, generation_of
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

SERVED_SETTINGS = ("engine.", "engine=", "microbatch.")
"""Prefixes of settings that have an effect here; other settings are refused."""

SERVE_EXAMPLES = (
    "germline serve runs/sums",
    "germline serve runs/sums --generation best --port 9000",
    "germline serve Qwen/Qwen2.5-0.5B-Instruct engine.dtype=bfloat16",
    "GERMLINE_TOKEN=secret germline serve runs/sums --host 0.0.0.0",
)


def serve(  # noqa: PLR0913 - the options of a command
    source: Source,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings engine.* and microbatch.*; microbatch.rows is the size of a batch.",
            autocompletion=shell_completion.complete_settings_of(SERVED_SETTINGS),
        ),
    ] = None,
    generation: Annotated[
        str | None,
        typer.Option(
            "--generation",
            "-g",
            metavar="GENERATION",
            help="What the model name `center` means: the weights of a run after this generation, "
            "-1 for the start, or best (highest held-out score). Default: the newest.",
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Longest completion that a request may ask for, in tokens.")
    ] = 1024,
    max_concurrent: MaxConcurrent = 256,
    max_queue: Annotated[
        int, typer.Option(min=1, help="Completions that wait or are being generated.")
    ] = 1024,
    max_request_mb: MaxRequestMb = 2.0,
    timeout_s: TimeoutSeconds = 600.0,
    *,
    as_json: AsJson = False,
) -> None:
    """Serve a run or a model to clients of OpenAI's API.

    The `model` of a request is base, center, gen-12 (the weights after generation 12) or
    gen-12/member-7 (a member that generation 12 evaluated). Ctrl-C ends the server.
    """
    check_prefixes(settings or [], SERVED_SETTINGS, "serve", "a server")
    chosen = generation_of("serve", generation)
    from germline.endpoint import serve_extra
    from germline.record.missing_run import check_source

    check_source(Path(source))
    with serve_extra("germline serve"):
        from germline.endpoint.http_app import HttpLimits
        from germline.services.serve import ServeSettings, endpoint
    limits = HttpLimits(token, int(max_request_mb * 1e6), max_concurrent, timeout_s)
    listening = ServeSettings(host, port, limits, max_new_tokens, max_queue)
    with endpoint(source, chosen, settings or [], listening) as (server, weights):
        names = weights.names()
        center = weights.select("center").fingerprint
        values = {
            "base_url": f"{server.url}/v1",
            "models": names,
            "center": center,
            "needs_token": token is not None,
            "chat": weights.sends_chats,
        }
        shown = ", ".join(names if len(names) <= 4 else [*names[:3], "...", names[-1]])
        lines = f"{source} at {server.url}/v1\nmodels: {shown}; center has digest {center[:16]}"
        if not weights.sends_chats:
            lines += (
                "\nThe run sent its prompts as they are: ask /v1/completions. /v1/chat/completions "
                "uses the chat template, which the run did not."
            )
        run_until_interrupt(server, lines, values, as_json=as_json)
