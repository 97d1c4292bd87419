"""The command `germline serve`: an OpenAI-compatible endpoint of a run or a model."""

from contextlib import suppress
from typing import Annotated

import typer

from germline.cli import completion
from germline.cli.arguments import Source, generation_of
from germline.cli.json_output import AsJson, print_json

SERVED_SETTINGS = ("engine.", "engine=", "microbatch.")
"""Prefixes of settings that have an effect here; other settings are refused."""

TOKEN_VARIABLE = "GERMLINE_TOKEN"

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
            autocompletion=completion.complete_evaluation_settings,
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
    host: Annotated[
        str,
        typer.Option(help="Address to listen at; others than loopback need a token."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen at; 0: any free one.")
    ] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar=TOKEN_VARIABLE,
            metavar="TOKEN",
            help="What requests must send as `Authorization: Bearer TOKEN`; other users of the "
            "machine can read options, so prefer the variable.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Longest completion that a request may ask for, in tokens.")
    ] = 1024,
    max_concurrent: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 256,
    max_queue: Annotated[
        int, typer.Option(min=1, help="Completions that wait or are being generated.")
    ] = 1024,
    max_request_mb: Annotated[
        float, typer.Option(min=0.001, help="Size of a request, in megabytes.")
    ] = 2.0,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Time of a request, in seconds.")
    ] = 600.0,
    *,
    as_json: AsJson = False,
) -> None:
    """Serve a run or a model to clients of OpenAI's API.

    The `model` of a request is base, center, gen-12 (the weights after generation 12) or
    gen-12/member-7 (a member that generation 12 evaluated). Ctrl-C ends the server.
    """
    from germline.types import GermlineError

    _check_settings(settings or [])
    chosen = None
    if generation is not None:
        error = (
            f"serve: --generation={generation} is neither a number nor best: use -g 40 or -g best"
        )
        chosen = generation_of(generation, error)
    try:
        from germline.services.http_app import HttpLimits
        from germline.services.serve import ServeSettings, endpoint
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "starlette", "uvicorn"):
            raise
        raise GermlineError(
            f"germline serve needs the package {error.name}, which is not installed: "
            "pip install 'germline[serve]'"
        ) from error
    limits = HttpLimits(token, int(max_request_mb * 1e6), max_concurrent, timeout_s)
    listening = ServeSettings(host, port, limits, max_new_tokens, max_queue)
    with endpoint(source, chosen, settings or [], listening) as (server, weights):
        names = weights.names()
        center = weights.select("center").fingerprint
        if as_json:
            print_json(
                {
                    "base_url": f"{server.url}/v1",
                    "models": names,
                    "center": center,
                    "needs_token": token is not None,
                }
            )
        else:
            shown = ", ".join(names if len(names) <= 4 else [*names[:3], "...", names[-1]])
            typer.echo(f"{source} at {server.url}/v1")
            typer.echo(f"models: {shown}; center has digest {center[:16]}")
            typer.echo("Ctrl-C ends the server.")
        with suppress(KeyboardInterrupt):
            server.run()


def _check_settings(settings: list[str]) -> None:
    """Refuse settings without an effect.

    Raises:
        GermlineError: there is one.
    """
    from germline.types import GermlineError

    for setting in settings:
        if not setting.startswith(SERVED_SETTINGS):
            raise GermlineError(
                f"serve: {setting} has no effect here; settings of a server start with "
                f"{', '.join(SERVED_SETTINGS)}"
            )
