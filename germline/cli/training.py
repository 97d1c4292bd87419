"""The verbs that train: `germline train` and `germline resume`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli import completing

if TYPE_CHECKING:
    from germline.run import Training

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE|FILE",
        help="Settings, or YAML files of settings, that replace those of the config in this order.",
        autocompletion=completing.settings,
    ),
]
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
)


def train(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG",
            help="A config file, or the name of one that comes with germline (list configs).",
            autocompletion=completing.configs,
        ),
    ],
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
    from germline.config import smoke as shrunk

    settings = load_config(config, overrides or [])  # complains before torch is imported

    settings = shrunk(settings) if smoke else settings

    from germline.cli.watching import watch

    def begin() -> "Training":
        from germline import run

        return run.train(settings, out)

    watch(begin, quiet=quiet)


def resume(
    path: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="The run directory.", autocompletion=completing.runs),
    ],
    overrides: Overrides = None,
    *,
    quiet: Quiet = False,
) -> None:
    """Continue a stopped or killed run.

    A finished run goes on when it is given more generations.

    The weights it reaches are those of a run that was never interrupted, bit for bit.
    """
    from germline.cli.watching import watch

    def begin() -> "Training":
        from germline import run

        return run.resume(path, overrides or [])

    watch(begin, quiet=quiet)
