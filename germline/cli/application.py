"""The `germline` command: its subcommands, and how errors are reported.

An error that a user can fix is printed as one red paragraph on stderr, with exit status 2. A
traceback means a bug in germline. An interrupted command ends with status 130, as shells expect.
"""

import logging
import re
import sys
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperGroup

from germline.cli import elo, evaluate, inventory, preparation, results, studies, train, weights
from germline.cli.arguments import examples_epilog
from germline.cli.output import FLAG, INTERRUPTED, print_json, print_stderr

LOG_VARIABLE = "GERMLINE_LOG_LEVEL"

WRONG_WORD = re.compile(r"(?:Value error, )?('(.*)' is not one of )(.*?)\.?")
"""Message of a word that is none of those that an argument or option has."""

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class UserErrorGroup(TyperGroup):
    """The group of commands, which turns a `GermlineError` into a message."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words, and remember whether `--json` is one of them."""
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[FLAG] = FLAG in args[:end]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit with a message and a status when it fails."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:  # its arguments say how to go on
            _fail(ctx, "Interrupted", " ".join(["Interrupted.", *interrupt.args]), INTERRUPTED)
        except Exception as error:
            _explain_argument(error)
            if ctx.meta[FLAG] and hasattr(error, "format_message"):  # a wrong option or argument
                _fail(ctx, "UsageError", error.format_message(), 2)
            # Not imported here: it imports numpy, which would make `--help` 0.3 s slower. Code that
            # raises a GermlineError has imported it.
            types = sys.modules.get("germline.types")
            if types is None or not isinstance(error, types.GermlineError):
                raise
            _fail(ctx, "GermlineError", str(error), 2)


def _explain_argument(error: Any) -> None:
    """Say which word may be meant, and how settings are written where an option is unknown."""
    if found := WRONG_WORD.fullmatch(str(getattr(error, "message", ""))):
        from germline.registry import did_you_mean

        hint = did_you_mean(found[2], re.findall(r"[\w-]+", found[3]))
        error.message = f"{found[1]}{found[3]}{hint}"
    context = getattr(error, "ctx", None) if hasattr(error, "possibilities") else None
    if context and any("KEY=VALUE" in (one.metavar or "") for one in context.command.params):
        error.message += ". Settings are written without dashes, KEY=VALUE"


def _fail(ctx: Any, kind: str, message: str, status: int) -> NoReturn:
    if ctx.meta[FLAG]:
        print_json({"error": {"type": kind, "message": message, "exit_status": status}})
    elif status == INTERRUPTED:
        print_stderr(message)
    else:
        print_stderr(f"germline: {message}", "red")
    raise typer.Exit(status) from None


class StderrHandler(logging.Handler):
    """Writes to the present stderr, above a live view."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message."""
        print_stderr(self.format(record))


def set_log_level(level: str) -> None:
    """Send germline's messages of this level and above to stderr, below `warning` with the time."""
    log, handler = logging.getLogger("germline"), StderrHandler()
    log.setLevel(level.upper())
    if level in ("debug", "info"):
        handler.setFormatter(logging.Formatter(FORMAT))
    log.handlers = [*(one for one in log.handlers if not isinstance(one, StderrHandler)), handler]


FIRST_STEPS = (
    "germline list configs",
    "germline train demo --out runs/first",
    'germline generate runs/first "What is the capital of France?"',
)

app = typer.Typer(
    name="germline",
    cls=UserErrorGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain help: brackets such as [key=value ...] are not markup, and rich is not imported.
    rich_markup_mode=None,
    epilog="\b\nA first run:\n" + "".join(f"  {line}\n" for line in FIRST_STEPS),
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(requested: Any) -> Any:
    if requested:
        from importlib.metadata import version

        typer.echo(f"germline {version('germline')}")
        raise typer.Exit
    return requested


@app.callback()
def germline(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(envvar=LOG_VARIABLE, case_sensitive=False, help="Messages on stderr."),
    ] = "warning",
) -> None:
    """Fine-tune language models with evolution strategies: forward passes and a reward."""
    set_log_level(log_level)


for name, command, examples in (
    ("train", train.train, train.TRAIN_EXAMPLES),
    ("probe", studies.probe, studies.PROBE_EXAMPLES),
    ("sweep", studies.sweep, studies.SWEEP_EXAMPLES),
    ("resume", train.resume, train.RESUME_EXAMPLES),
    ("export", weights.export, weights.EXPORT_EXAMPLES),
    ("eval", evaluate.evaluate, evaluate.EVALUATE_EXAMPLES),
    ("elo", elo.elo, elo.ELO_EXAMPLES),
    ("report", results.report, results.REPORT_EXAMPLES),
    ("compare", studies.compare, studies.COMPARE_EXAMPLES),
    ("analyze", results.analyze, results.ANALYZE_EXAMPLES),
    ("generate", weights.generate, weights.GENERATE_EXAMPLES),
    ("serve", weights.serve, weights.SERVE_EXAMPLES),
    ("list", inventory.show, inventory.LIST_EXAMPLES),
    ("doctor", inventory.doctor, inventory.DOCTOR_EXAMPLES),
    ("new", preparation.new, preparation.NEW_EXAMPLES),
    ("check", preparation.check, preparation.CHECK_EXAMPLES),
):
    app.command(name, epilog=examples_epilog(examples))(command)
