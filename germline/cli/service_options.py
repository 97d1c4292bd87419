"""What the commands of services share: address, token, limits, and running to Ctrl-C."""

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli.json_output import print_json

if TYPE_CHECKING:
    from germline.endpoint.uvicorn_service import UvicornService

TOKEN_VARIABLE = "GERMLINE_TOKEN"

Host = Annotated[str, typer.Option(help="Address to listen at; others than loopback need a token.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: any free one.")]
Token = Annotated[
    str | None,
    typer.Option(
        envvar=TOKEN_VARIABLE,
        metavar="TOKEN",
        help="What requests must send as `Authorization: Bearer TOKEN`; other users of the "
        "machine can read options, so prefer the variable.",
    ),
]
MaxConcurrent = Annotated[int, typer.Option(min=1, help="Requests at a time.")]
MaxRequestMb = Annotated[float, typer.Option(min=0.001, help="Size of a request, in megabytes.")]
TimeoutSeconds = Annotated[
    float, typer.Option("--timeout", min=0.1, help="Time of a request, in seconds.")
]


def run_until_interrupt(
    server: "UvicornService", lines: str, values: Mapping[str, object], *, as_json: bool
) -> None:
    """Print what a server serves, as text or as JSON, and run it until Ctrl-C."""
    if as_json:
        print_json(values)
    else:
        typer.echo(f"{lines}\nCtrl-C ends the server.")
    with suppress(KeyboardInterrupt):
        server.run()
    if not as_json:
        typer.echo("The server has ended.")
