"""The `germline` command itself: its verbs, and how errors reach a person.

What a user can mend is told in one red paragraph on stderr, with exit status 2. A traceback means a
mistake of ours. An interrupted command ends with status 130, as shells expect.
"""

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from germline.cli import (
    examining,
    listing,
    own_tasks,
    playing,
    probing,
    rebuilding,
    reporting,
    studying,
    training,
)
from germline.cli.stopping import INTERRUPTED


class ErrorsForPeople(TyperGroup):
    """The group of verbs, which turns a `GermlineError` into a message."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; end the process tidily when it cannot go on."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.secho("Interrupted.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            # Not imported for this: it brings numpy, a third of a second `--help` can do without.
            # Whoever raised a GermlineError has imported it.
            types = sys.modules.get("germline.types")
            if types is None or not isinstance(error, types.GermlineError):
                raise
            typer.secho(f"germline: {error}", fg="red", err=True)
            raise typer.Exit(2) from None


FIRST_STEPS = (
    "germline list configs",
    "germline train demo --out runs/first",
    'germline generate runs/first "What is the capital of France?"',
)

app = typer.Typer(
    name="germline",
    cls=ErrorsForPeople,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain help: brackets such as [key=value ...] are not markup, and rich stays unimported.
    rich_markup_mode=None,
    epilog="\b\nA first run, from nothing:\n" + "".join(f"  {one}\n" for one in FIRST_STEPS),
)


def _print_version(*, asked: bool) -> bool:
    if asked:
        from importlib.metadata import version

        typer.echo(f"germline {version('germline')}")
        raise typer.Exit
    return asked


@app.callback()
def germline(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=lambda asked: _print_version(asked=asked),
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Fine-tune language models with evolution strategies: forward passes and a reward."""


for name, verb, lines in (
    ("train", training.train, training.TRAIN_EXAMPLES),
    ("probe", probing.probe, probing.PROBE_EXAMPLES),
    ("resume", training.resume, training.RESUME_EXAMPLES),
    ("replay", rebuilding.replay, rebuilding.REPLAY_EXAMPLES),
    ("export", rebuilding.export, rebuilding.EXPORT_EXAMPLES),
    ("eval", playing.evaluate, playing.EVALUATE_EXAMPLES),
    ("report", reporting.report, reporting.REPORT_EXAMPLES),
    ("generate", playing.generate, playing.GENERATE_EXAMPLES),
    ("list", listing.show, listing.LIST_EXAMPLES),
    ("doctor", examining.doctor, examining.DOCTOR_EXAMPLES),
):
    # The backspace tells click to leave these lines as they are.
    app.command(name, epilog="\b\nExamples:\n" + "".join(f"  {one}\n" for one in lines))(verb)

app.add_typer(own_tasks.new, name="new")
app.add_typer(own_tasks.check, name="check")
app.add_typer(studying.study, name="study")
