"""The verbs that train: `germline train` and `germline resume`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from germline.cli.arguments import ConfigFile, Overrides, Run

if TYPE_CHECKING:
    from germline.run import Training

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print the result only, nothing while training.")
]

TRAIN_EXAMPLES = (
    "germline train configs/conciseness.yaml",
    "germline train configs/countdown.yaml strategy.sigma=0.002 seed=3",
    "germline train configs/arithmetic.yaml --out runs/sums --quiet",
    "germline train configs/arithmetic.yaml probes/sums/probe.yaml",
)
RESUME_EXAMPLES = (
    "germline resume runs/sums",
    "germline resume runs/sums generations=200",
    "germline resume runs/sums --from best strategy.learning_rate=0.002",
    "germline resume runs/sums --from 40 --out runs/later batch_size=64",
)


def train(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The run directory; default: a new one in runs/."),
    ] = None,
    quiet: Quiet = False,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Two small generations of the nano model: does it run?")
    ] = False,
) -> None:
    """Train a model and write a run directory.

    Ctrl-C finishes the generation at hand and stops; a second one stops at once. Either way the run
    can be resumed.
    """
    from germline.config import load_config
    from germline.config import smoke_config as shrunk

    settings = load_config(config, overrides or [])  # complains before torch is imported

    settings = shrunk(settings) if smoke else settings

    from germline.cli.run_loop import run_with_view

    def begin() -> "Training":
        from germline import run

        return run.train(settings, out)

    run_with_view(begin, quiet=quiet)


def resume(
    path: Run,
    overrides: Overrides = None,
    *,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="GENERATION",
            help="Begin a new run from the weights after this generation, or after the best one "
            "(best: highest held-out score); -1 is the start. Other settings are allowed, but for "
            "model and space.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="With --from: the new run directory; default: a new one in runs/."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Continue a stopped or killed run, or begin a new one from a generation of it.

    A finished run goes on when it is given more generations. The weights it reaches are those of a
    run that was never interrupted, bit for bit.

    With --from, the run stays as it is, and a new run directory is written, which does not need the
    old one: it keeps the journal that led to its starting weights.
    """
    from germline.cli.run_loop import run_with_view
    from germline.types import GermlineError

    if out is not None and start is None:
        raise GermlineError(
            f"resume: --out={out} goes with --from, as a run is continued in its own directory: "
            "drop it, or name the generation to start from (--from best)"
        )

    def begin() -> "Training":
        from germline import run

        if start is None:
            return run.resume(path, overrides or [])
        return run.fork(path, _generation(start), overrides or [], out)

    run_with_view(begin, quiet=quiet)


def _generation(text: str) -> int | Literal["best"]:
    from germline.types import GermlineError

    if text == "best":
        return "best"
    try:
        return int(text)
    except ValueError:
        raise GermlineError(
            f"resume: --from={text} is neither a generation nor best: use --from 40, or --from best"
        ) from None
